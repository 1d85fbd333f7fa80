package plan

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/kilo-overlay/kilo/core/model"
)

// kind orders claims on prefixes: what the cluster is made of cannot be taken
// away by what people add to it.
type kind uint8

const (
	clusterKind kind = iota // pod prefixes, node addresses, WireGuard addresses
	allowedKind             // allowed-location-ips
	peerKind                // allowedIPs of Peers
)

// claim says that a prefix is reached through a party: a location or a Peer.
type claim struct {
	prefix netip.Prefix
	kind   kind
	// party is the index of a location, or, for peerKind, of a Peer.
	party int32
	// node is the node that the prefix comes from; nil for Peers.
	node *model.Node
	// mute is set for nodes without an agent: their prefixes are kept from
	// leaving in clear, but no tunnel carries them.
	mute bool
	// tunnel is set for a WireGuard address.
	tunnel bool
}

// ground is which prefix belongs to whom, conflicts decided. It is the same on
// every node.
type ground struct {
	// claims are sorted by prefix. Equal prefixes of different parties never
	// both stand, nor do nested ones unless the wider one is an
	// allowed-location-ips entry or a Peer's: there the longer prefix wins in
	// WireGuard and in the routing table alike.
	claims   []claim
	warnings []model.Warning
}

func newGround(s *model.Snapshot, ls []Location) ground {
	room := 0
	for i := range s.Nodes {
		n := &s.Nodes[i]
		room += len(n.PodPrefixes) + len(n.InternalIPs) + len(n.WireGuardIPs) + len(n.AllowedLocationIPs)
	}
	for i := range s.Peers {
		room += len(s.Peers[i].AllowedIPs)
	}
	all := make([]claim, 0, room)
	for i := range ls {
		all = appendLocation(all, &ls[i], int32(i))
	}
	for i := range s.Peers {
		for _, p := range s.Peers[i].AllowedIPs {
			all = append(all, claim{prefix: p.Masked(), kind: peerKind, party: int32(i)})
		}
	}
	sortClaims(all)
	g := ground{}
	g.decide(s, ls, all)
	return g
}

// appendLocation adds what is reached through a location.
func appendLocation(all []claim, l *Location, party int32) []claim {
	for _, n := range l.Nodes {
		c := claim{kind: clusterKind, party: party, node: n, mute: !n.Spoken || l.Gateway == nil}
		add := func(p netip.Prefix) {
			c.prefix = p.Masked()
			all = append(all, c)
		}
		if !n.NodesOnly {
			for _, p := range n.PodPrefixes {
				add(p)
			}
		}
		for _, p := range n.InternalIPs {
			add(single(p.Addr()))
		}
		if n == l.Gateway || meshesItself(n) || l.armed(n) {
			c.tunnel = true
			for _, a := range n.WireGuardIPs {
				add(single(a))
			}
			c.tunnel = false
		}
		if c.mute {
			continue
		}
		c.kind = allowedKind
		for _, p := range n.AllowedLocationIPs {
			add(p)
		}
	}
	return all
}

// decide walks the sorted claims once. open holds the standing claims that
// enclose the current prefix, outermost first.
func (g *ground) decide(s *model.Snapshot, ls []Location, all []claim) {
	g.claims = all[:0:len(all)]
	var open []claim
	for i := 0; i < len(all); {
		// All claims on one prefix: the best kind wins, then the older party.
		j := i + 1
		for j < len(all) && all[j].prefix == all[i].prefix {
			j++
		}
		same := all[i:j]
		i = j
		best := same[0]
		for _, c := range same[1:] {
			if prefer(s, c, best) {
				best = c
			}
		}
		for len(open) > 0 && !covers(open[len(open)-1].prefix, best.prefix) {
			open = open[:len(open)-1]
		}
		if len(same) > 1 {
			for _, c := range same {
				if c.owner() != best.owner() {
					g.refuse(s, ls, c, best)
				}
			}
		}
		if outer, refused := shadow(s, open, best); refused {
			g.refuse(s, ls, best, outer)
			continue
		}
		open = append(open, best)
		g.claims = append(g.claims, best)
	}
}

// shadow tells whether c would take a part out of something that it must not:
// out of a standing claim of a better kind, out of the cluster's own prefixes,
// out of an older Peer's, or out of the ranges of WireGuard's and Services'
// addresses, which are no host's.
func shadow(s *model.Snapshot, open []claim, c claim) (outer claim, refused bool) {
	for i := len(open) - 1; i >= 0; i-- {
		o := open[i]
		if o.owner() == c.owner() || o.prefix.Bits() == 0 && o.kind == peerKind {
			continue // what a default route leaves to others is what they have
		}
		if o.kind < c.kind || o.kind == clusterKind || o.kind == peerKind && c.kind == peerKind && prefer(s, o, c) {
			return o, true
		}
	}
	if c.kind == clusterKind && !c.isInternalIP() {
		return claim{}, false // WireGuard's addresses, and pods, of which the CNI knows best
	}
	for _, n := range s.WireGuardSubnets {
		if covers(n, c.prefix) {
			return claim{prefix: n, kind: clusterKind, party: wireGuardRange}, true
		}
	}
	for _, n := range s.ServicePrefixes {
		if covers(n, c.prefix) {
			return claim{prefix: n, kind: clusterKind, party: serviceRange}, true
		}
	}
	return claim{}, false
}

// Parties that are none.
const (
	wireGuardRange int32 = -1 - iota
	serviceRange
)

type owner struct {
	peer  bool
	party int32
}

func (c *claim) owner() owner { return owner{c.kind == peerKind, c.party} }

// prefer decides between two claims on the same prefix: the better kind, then
// speaking nodes before mute ones, then the older Peer, or the older node by UID.
func prefer(s *model.Snapshot, a, b claim) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	if a.kind == peerKind {
		p, q := &s.Peers[a.party], &s.Peers[b.party]
		return cmp.Or(cmp.Compare(p.Seq, q.Seq), cmp.Compare(p.UID, q.UID), cmp.Compare(p.Name, q.Name)) < 0
	}
	if a.mute != b.mute {
		return b.mute
	}
	return older(a.node, b.node)
}

func (g *ground) refuse(s *model.Snapshot, ls []Location, c, winner claim) {
	g.warnings = append(g.warnings, model.Warning{
		Kind:   "PrefixConflict",
		Object: c.object(s),
		Message: fmt.Sprintf("%s is not reached through %s: %s belongs to %s; take one of the two away",
			c.prefix, c.through(s, ls), winner.prefix, winner.through(s, ls)),
	})
}

func (c *claim) object(s *model.Snapshot) string {
	if c.kind == peerKind {
		return "peer/" + s.Peers[c.party].Name
	}
	return "node/" + c.node.Name
}

func (c *claim) through(s *model.Snapshot, ls []Location) string {
	switch {
	case c.party == wireGuardRange:
		return "the WireGuard subnet"
	case c.party == serviceRange:
		return "the range of Services"
	case c.kind == peerKind:
		return "peer " + s.Peers[c.party].Name
	case c.kind == allowedKind:
		return fmt.Sprintf("location %q (allowed-location-ips of node %s)", ls[c.party].Name, c.node.Name)
	}
	return fmt.Sprintf("location %q (node %s)", ls[c.party].Name, c.node.Name)
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// covers tells whether p contains all of q.
func covers(p, q netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Contains(q.Addr()) }
