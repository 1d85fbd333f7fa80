package cluster

import (
	"net/netip"

	"github.com/kilo-overlay/kilo/core/model"
)

// A fact is something that only one node can have: its key, a WireGuard
// address, an internal address. One of the fields is set.
type fact struct {
	key       model.Key
	wireGuard netip.Addr
	internal  netip.Addr
	pods      netip.Prefix
}

// facts lists what a node claims for itself alone.
func facts(n *model.Node) []fact {
	out := make([]fact, 0, 1+len(n.WireGuardIPs)+len(n.InternalIPs)+len(n.PodPrefixes))
	if !n.Key.IsZero() {
		out = append(out, fact{key: n.Key})
	}
	for _, a := range n.WireGuardIPs {
		out = append(out, fact{wireGuard: a})
	}
	for _, p := range n.InternalIPs {
		out = append(out, fact{internal: p.Addr()})
	}
	for _, p := range n.PodPrefixes {
		out = append(out, fact{pods: p})
	}
	return out
}

// A Moment orders what this process learned. Moments are no time of day and
// mean nothing to another process.
type Moment uint64

const (
	// OnDisk is the moment of what an earlier process had left.
	OnDisk Moment = 1
	// Listed is the moment of everything that the API server's first list held.
	Listed Moment = 2
)

// Claims remembers in which order this process saw nodes claim what only one
// of them can have. The API server hands every watcher the changes of Nodes in
// one order, so that agents which watched two claims being made agree on who
// was first without comparing clocks. The zero Claims remembers nothing.
type Claims struct {
	nodes map[string]map[fact]Moment // by UID
}

// Observe records that node n was seen as it is at moment at. What it claimed
// before and still does keeps its moment; what it claims no more is forgotten.
func (c *Claims) Observe(n model.Node, at Moment) {
	old := c.nodes[n.UID]
	now := make(map[fact]Moment)
	for _, f := range facts(&n) {
		if since, ok := old[f]; ok {
			now[f] = since
		} else {
			now[f] = at
		}
	}
	if c.nodes == nil {
		c.nodes = make(map[string]map[fact]Moment)
	}
	c.nodes[n.UID] = now
}

// Forget drops what the node of that UID claimed.
func (c *Claims) Forget(uid string) { delete(c.nodes, uid) }

// since is the moment from which a node has claimed f; claims that were never
// observed are younger than all others.
func (c *Claims) since(uid string, f fact) Moment {
	if at, ok := c.nodes[uid][f]; ok {
		return at
	}
	return ^Moment(0)
}
