package agent

import (
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// What another node holds, this one does not publish for itself. The Snapshot
// gives what two nodes claim to one of them (cluster.Resolve), to the one that
// this process saw with it first; an agent that starts later has seen both at
// once, and might take the other one. So whoever has lost takes its claim back:
// then there is one claim, and nothing to be decided by anybody.

// The kinds of warnings about that, in the words of core/cluster.
const (
	duplicateKey        = "DuplicateKey"
	duplicateInternalIP = "DuplicateInternalIP"
	overlappingPods     = "OverlappingPodPrefix"
)

// keyHolder is the node beside the own one that has its key, or nil.
func (c *Config) keyHolder(s *model.Snapshot) *model.Node {
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Name != c.Node && n.Key == c.Key && !c.Key.IsZero() {
			return n
		}
	}
	return nil
}

// withoutSelf is a Snapshot in which the own node's agent has not spoken.
func (c *Config) withoutSelf(s model.Snapshot) model.Snapshot {
	s.Nodes = slices.Clone(s.Nodes)
	if me := s.Node(c.Node); me != nil {
		me.Spoken, me.Key = false, model.Key{}
	}
	return s
}

// yieldKey has the node say and do nothing under a key that is another's. Two
// devices with one key would take each other's sessions, and with them the
// other node's traffic.
func (c *Config) yieldKey(holder *model.Node, d *decision) {
	d.warnings = append(d.warnings, c.warning(duplicateKey, "its public key %s is that of node %s, which keeps it; this node is out of the mesh. "+
		"Was its disk copied? Then delete /var/lib/kilo/key on this node and restart its agent. If %s is this machine under an earlier name, delete that Node", c.Key, holder.Name, holder.Name))
	d.published.Key = model.Key{}
	d.mute = true
	d.report.Waiting = []string{"this node's key is that of node " + holder.Name + "; see the warning " + duplicateKey}
}

// yieldAddresses leaves out of what is to be published the addresses that other
// nodes' agents hold.
func (c *Config) yieldAddresses(s *model.Snapshot, d *decision) {
	p := &d.published
	p.InternalIPs = slices.DeleteFunc(slices.Clone(p.InternalIPs), func(mine netip.Prefix) bool {
		n := c.holder(s, func(n *model.Node) bool { return hasInternal(n, mine.Addr()) })
		if n == nil {
			return false
		}
		d.warnings = append(d.warnings, c.warning(duplicateInternalIP, "its internal address %s is that of node %s too, which keeps it; other locations do not reach this node's own address. "+
			"Give one of them another address, or say kilo.squat.ai/force-internal-ip=- on one", mine.Addr(), n.Name))
		return true
	})
	p.PodPrefixes = slices.DeleteFunc(slices.Clone(p.PodPrefixes), func(mine netip.Prefix) bool {
		var theirs netip.Prefix
		n := c.holder(s, func(n *model.Node) bool {
			i := slices.IndexFunc(n.PodPrefixes, mine.Overlaps)
			if i >= 0 {
				theirs = n.PodPrefixes[i]
			}
			return i >= 0
		})
		if n == nil {
			return false
		}
		d.warnings = append(d.warnings, c.warning(overlappingPods, "its pod prefix %s overlaps %s of node %s, which had it first; other locations do not reach this node's pods there. "+
			"Two nodes with the same pod addresses are a fault of the host CNI's address management", mine, theirs, n.Name))
		return true
	})
}

// holder is the first node beside the own one whose agent has spoken and has
// what is asked for, or nil.
func (c *Config) holder(s *model.Snapshot, has func(*model.Node) bool) *model.Node {
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Name != c.Node && n.Spoken && has(n) {
			return n
		}
	}
	return nil
}

// mute returns wanted without any WireGuard peer.
func mute(wanted state.State) state.State {
	wanted.Links = slices.Clone(wanted.Links)
	for i := range wanted.Links {
		if l := &wanted.Links[i]; l.Tunnel != nil {
			t := *l.Tunnel
			t.Peers = nil
			l.Tunnel = &t
		}
	}
	return wanted
}
