package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

// Addresses returns the WireGuard addresses that the node called self should
// have, at most one per subnet of the Snapshot, IPv4 first. A node that
// already has one keeps it, whatever joins or leaves. Otherwise the serving
// gateway and the first `gateways` candidates of a location, and every node
// that meshes itself (granularity cross or full), claim a free address; nobody
// else needs one. Of several that have none yet, the oldest claims the lowest
// free address, the next one the next: a cluster whose nodes all start at once
// would otherwise want one and the same, in as many rounds as it has nodes. The
// agent publishes a claim, reads it back, and uses it only if nobody else holds
// it then.
//
// An exhausted subnet is an error that concerns this node alone; the addresses
// found so far come with it.
func (m *Mesh) Addresses(self string, gateways int) ([]netip.Addr, error) {
	s := &m.snapshot
	me := s.Node(self)
	if me == nil {
		return nil, nil
	}
	wanting := m.claimants(gateways)
	wants := slices.Contains(wanting, me)
	var out []netip.Addr
	var failed error
	for _, subnet := range s.WireGuardSubnets {
		if held := holds(me, subnet); held.IsValid() && !heldByOther(s, self, held) {
			out = append(out, held)
			continue
		}
		if !wants {
			continue
		}
		before := 0
		for _, n := range wanting {
			if n != me && older(n, me) && !holds(n, subnet).IsValid() {
				before++
			}
		}
		free := nextFree(s, self, subnet, before)
		if !free.IsValid() {
			failed = fmt.Errorf("no free address in %s for node %s: every address is held by a node; use a larger --subnet", subnet, self)
			continue
		}
		out = append(out, free)
	}
	return out, failed
}

// claimants are the nodes that need a WireGuard address.
func (m *Mesh) claimants(gateways int) []*model.Node {
	var out []*model.Node
	for i := range m.Locations {
		l := &m.Locations[i]
		wanted := l.wanted(gateways)
		for _, n := range l.Nodes {
			if meshesItself(n) || slices.Contains(wanted, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

func holds(n *model.Node, subnet netip.Prefix) netip.Addr {
	for _, a := range n.WireGuardIPs {
		if subnet.Contains(a) && a != subnet.Masked().Addr() {
			return a
		}
	}
	return netip.Addr{}
}

// heldByOther tells whether the address is another node's. core/cluster gives
// an address that two nodes publish to one of them only, the one that held it
// first; should a Snapshot name both all the same, the lower UID keeps it.
func heldByOther(s *model.Snapshot, self string, a netip.Addr) bool {
	me := s.Node(self)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Name != self && slices.Contains(n.WireGuardIPs, a) && older(n, me) {
			return true
		}
	}
	return false
}

// older orders two nodes that claim the same thing.
func older(a, b *model.Node) bool {
	if a.UID != b.UID {
		return a.UID < b.UID
	}
	return a.Name < b.Name
}

// nextFree returns the free address that has so many free ones before it. Where
// there are not as many it counts again from the lowest: a node that could claim
// may never do so.
func nextFree(s *model.Snapshot, self string, subnet netip.Prefix, before int) netip.Addr {
	taken := make(map[netip.Addr]bool)
	for i := range s.Nodes {
		if s.Nodes[i].Name == self {
			continue
		}
		for _, a := range s.Nodes[i].WireGuardIPs {
			taken[a] = true
		}
	}
	var free []netip.Addr
	// The subnet's own address is left out: on many systems it means "any
	// address here".
	for a := subnet.Masked().Addr().Next(); subnet.Contains(a) && len(free) <= before; a = a.Next() {
		if !taken[a] {
			free = append(free, a)
		}
	}
	if len(free) == 0 {
		return netip.Addr{}
	}
	return free[before%len(free)]
}
