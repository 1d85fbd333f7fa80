package plan

import (
	"cmp"
	"net/netip"
	"slices"
)

// What mends the mesh is never cut off by it. An agent that cannot reach the
// API server can neither publish its key nor learn another's, so the way to an
// API server whose address belongs to another location must not depend on a
// tunnel that may need that very server to come up.
//
// While a location is not live (no probe through the tunnel was answered
// lately; a handshake's age says nothing), the addresses concerned stay out of
// our routing table, and the guard lets pass only TCP to and from the API
// server's port:
//
//   - on every node, the API servers' addresses in that location;
//   - on an API server's own node, all node addresses of that location, to
//     which its answers go. A node without an agent is never live.

// exceptions are the addresses to be reached outside the mesh for now.
type exceptions struct {
	// addresses are sorted.
	addresses []netip.Addr
	// passes are the flows that the guard lets through.
	passes []pass
}

// pass is TCP to Addr: at Port, or, with Reply, from Port.
type pass struct {
	addr  netip.Addr
	port  uint16
	reply bool
}

// exempt tells whether a single-address prefix is an exception.
func (e *exceptions) exempt(p netip.Prefix) bool {
	if len(e.addresses) == 0 || !p.IsSingleIP() {
		return false
	}
	_, ok := slices.BinarySearchFunc(e.addresses, p.Addr(), netip.Addr.Compare)
	return ok
}

func (p *planner) findExceptions() {
	if len(p.snapshot.APIServers) == 0 {
		return
	}
	here := p.apiPortsHere()
	for i := range p.remote {
		r := &p.remote[i]
		if r.kind == peerKind || p.live(r) {
			continue
		}
		for _, server := range p.snapshot.APIServers {
			// WireGuard addresses stay in: the probe that tells whether the
			// tunnel lives goes to them.
			if r.prefix.Contains(server.Addr()) && !p.isWireGuardIP(server.Addr()) {
				p.except(pass{addr: server.Addr(), port: server.Port()})
			}
		}
		if len(here) > 0 && r.isInternalIP() {
			for _, port := range here {
				p.except(pass{addr: r.prefix.Addr(), port: port, reply: true})
			}
		}
	}
	slices.SortFunc(p.api.addresses, netip.Addr.Compare)
	p.api.addresses = slices.Compact(p.api.addresses)
	slices.SortFunc(p.api.passes, comparePass)
	p.api.passes = slices.Compact(p.api.passes)
}

// live tells whether the tunnel that carries a prefix is known to work.
func (p *planner) live(r *remote) bool {
	switch {
	case r.mute:
		return false
	case r.hop != nil && p.facts.Direct[r.hop.Name]:
		return true
	}
	return p.facts.Live[p.locations[r.party].Name]
}

func (p *planner) except(e pass) {
	p.api.passes = append(p.api.passes, e)
	p.api.addresses = append(p.api.addresses, e.addr)
}

func comparePass(a, b pass) int {
	c := cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port))
	switch {
	case c != 0 || a.reply == b.reply:
		return c
	case b.reply:
		return -1
	}
	return 1
}

func (p *planner) isWireGuardIP(a netip.Addr) bool {
	return slices.ContainsFunc(p.snapshot.WireGuardSubnets, func(n netip.Prefix) bool { return n.Contains(a) })
}

// isInternalIP tells whether the claim is on its node's internal address.
func (c *claim) isInternalIP() bool {
	if c.node == nil || c.kind != clusterKind {
		return false
	}
	for _, a := range c.node.InternalIPs {
		if single(a.Addr()) == c.prefix {
			return true
		}
	}
	return false
}

// apiPortsHere are the ports of API servers at this node's own addresses.
func (p *planner) apiPortsHere() (ports []uint16) {
	for _, server := range p.snapshot.APIServers {
		for _, a := range p.self.InternalIPs {
			if a.Addr() == server.Addr() && !slices.Contains(ports, server.Port()) {
				ports = append(ports, server.Port())
			}
		}
	}
	return ports
}
