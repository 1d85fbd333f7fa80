package plan

import (
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/state"
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
//
// What an API server answers from an address that is not in the mesh (its node's
// public one) never enters the tunnel, whose other end would not take it from
// there: a node whose own address is public, and in the mesh, asks it there.
//
// A tunnel that lives may end with its agent: a userspace device takes its
// routes along, and then nobody is there to see it. The kubelet that is to start
// the next agent would be cut off for good by a standing unreachable. So where
// such an address is reached over a link of this node's own, what stands under
// its route is a throw, and the guard's passes stand beside it all the time.

// exceptions are the addresses to be reached outside the mesh: for now, or as
// soon as the link is gone that leads to them.
type exceptions struct {
	// addresses stay out of our table for now, and under are those with a throw
	// under their route. Both are sorted.
	addresses, under []netip.Addr
	// servers are to be reached, by TCP to their port.
	servers []netip.AddrPort
	// callers are to be answered, by TCP from these ports of this node. Sorted.
	callers []netip.Prefix
	ports   []uint16
	// outside are addresses of this node's API server that are not in the mesh.
	outside []netip.Addr
}

// exempt tells whether a single-address prefix is an exception.
func (e *exceptions) exempt(p netip.Prefix) bool { return holdsAddr(e.addresses, p) }

// last is what stands under the route to a prefix.
func (e *exceptions) last(p netip.Prefix) state.RouteType {
	if holdsAddr(e.under, p) {
		return state.Throw
	}
	return state.Unreachable
}

// holdsAddr tells whether p is one of the single addresses, which are sorted.
func holdsAddr(sorted []netip.Addr, p netip.Prefix) bool {
	if len(sorted) == 0 || !p.IsSingleIP() {
		return false
	}
	_, ok := slices.BinarySearchFunc(sorted, p.Addr(), netip.Addr.Compare)
	return ok
}

// apiServersApart gives the address of an API server that lies in a wider
// prefix of others an entry of its own, so that it can be led another way.
func (p *planner) apiServersApart() {
	added := false
	for _, server := range p.snapshot.APIServers {
		at := single(server.Addr())
		var inside *remote // the narrowest
		for i := range p.remote {
			if r := &p.remote[i]; r.kind != peerKind && covers(r.prefix, at) {
				inside = r
			}
		}
		own := func(q netip.Prefix) bool { return covers(q, at) }
		if inside == nil || inside.prefix == at || slices.ContainsFunc(p.shadowed, own) {
			continue
		}
		r, apart := *inside, *inside.claim
		apart.prefix = at
		r.claim = &apart
		p.remote = append(p.remote, r)
		added = true
	}
	if added {
		slices.SortFunc(p.remote, func(a, b remote) int { return comparePrefix(a.prefix, b.prefix) })
	}
}

func (p *planner) findExceptions() {
	if len(p.snapshot.APIServers) == 0 {
		return
	}
	p.apiServersApart()
	p.api.ports = p.apiPortsHere()
	p.api.outside = p.apiAddressesOutside()
	for i := range p.remote {
		r := &p.remote[i]
		if r.kind == peerKind {
			continue
		}
		live := p.live(r)
		if live && r.hop == nil {
			continue
		}
		found := false
		for _, server := range p.snapshot.APIServers {
			// WireGuard addresses stay in: the probe that tells whether the
			// tunnel lives goes to them.
			if r.prefix == single(server.Addr()) && !p.isWireGuardIP(server.Addr()) {
				p.api.servers = append(p.api.servers, server)
				found = true
			}
		}
		if len(p.api.ports) > 0 && r.isInternalIP() {
			p.api.callers = append(p.api.callers, r.prefix)
			found = true
		}
		switch {
		case !found:
		case live:
			p.api.under = append(p.api.under, r.prefix.Addr())
		default:
			p.api.addresses = append(p.api.addresses, r.prefix.Addr())
		}
	}
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

// passes are what the guard lets through beside the tunnel, and what nothing
// else of ours touches on its way.
func (p *planner) passes(s *sets) (out [][]state.Match) {
	var beside []state.Match
	for _, l := range p.tunnels() {
		beside = append(beside, state.OutInterface{Name: l.Name, Not: true})
	}
	pass := func(m ...state.Match) { out = append(out, slices.Concat(beside, m)) }
	for _, server := range p.api.servers {
		pass(state.AddrIs{Prefix: single(server.Addr())}, state.Port{Proto: "tcp", Port: server.Port()})
	}
	for _, port := range p.api.ports {
		for _, v6 := range []bool{false, true} {
			if s.has(callersSet, v6) {
				pass(state.AddrInSet{V6: v6, Set: name(callersSet, v6)}, state.Port{Proto: "tcp", Port: port, Source: true})
			}
		}
	}
	return out
}

// answersOutside are what an API server's host says from addresses outside of
// the mesh, which the guard lets go.
func (p *planner) answersOutside() (out [][]state.Match) {
	for _, port := range p.api.ports {
		for _, a := range p.api.outside {
			out = append(out, []state.Match{state.AddrIs{Source: true, Prefix: single(a)}, state.Port{Proto: "tcp", Port: port, Source: true}})
		}
	}
	return out
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

// apiAddressesOutside are the addresses of this node's API server that are not
// in the mesh: the node's endpoint, and whatever agents are configured with that
// nobody in the mesh has, a floating address say.
func (p *planner) apiAddressesOutside() (out []netip.Addr) {
	if len(p.api.ports) == 0 {
		return nil
	}
	add := func(a netip.Addr) {
		a = a.Unmap()
		if a.IsValid() && !a.IsLoopback() && !p.inMesh(a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	add(p.self.Endpoint.Addr)
	for _, server := range p.snapshot.APIServers {
		add(server.Addr())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
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
