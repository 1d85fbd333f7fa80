package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/state"
)

// tunnelRoute leads into the tunnel what this node sends over a link of its
// own: on a gateway everything, its members' traffic included.
func (p *planner) tunnelRoute(r *remote) (route state.Route, ok bool) {
	if !p.carries || r.mute || r.hop == nil && !(r.kind == peerKind && p.serving) || p.api.exempt(r.prefix) {
		return route, false
	}
	v4 := r.prefix.Addr().Is4()
	source := p.source(v4)
	if !source.IsValid() {
		// The other side accepts no source of ours in this family.
		p.sourceless = append(p.sourceless, r.prefix)
		return route, false
	}
	route = state.Route{
		Table: state.TableOverlay, Dst: r.prefix, Type: state.Unicast,
		Device: p.linkTo(r.hop), Source: source, MTU: r.mtu,
	}
	if p.facts.Adapter.Unnumbered {
		// Named by its next hop, a route is not taken for a device's own
		// network and copied into main by the CNI. Which peer a packet goes to
		// its destination decides, so a Peer, which has no address of its own,
		// is named by what it has.
		via := r.prefix.Addr()
		if r.hop != nil {
			via = r.hop.WireGuardIP(v4)
		}
		if via.IsValid() && !via.IsUnspecified() {
			route.Via, route.OnLink = via, true
		}
	}
	return route, true
}

// source is what this node itself speaks from to other locations: its internal
// address. One that has none at all speaks from its WireGuard address, as far as
// others reach it there.
func (p *planner) source(v4 bool) netip.Addr {
	if len(p.self.InternalIPs) == 0 && (p.serving || meshesItself(p.self)) && (v4 || !p.facts.Adapter.Unnumbered) {
		return p.self.WireGuardIP(v4)
	}
	return p.self.InternalIP(v4)
}

// inject asks the adapter for what it adds, and admits it.
func (p *planner) inject(a adapter.Adapter) {
	if a == nil {
		return
	}
	v := p.view()
	additions, err := a.Inject(v, p.facts.Adapter)
	if err != nil {
		p.warn("Adapter", "node/"+p.self.Name, "%s: %v", a.Name(), err)
	}
	links, routes, refused := Admit(v, additions)
	for _, why := range refused {
		p.warn("AdapterRefused", "node/"+p.self.Name, "%s wanted what an adapter may not add: %v", a.Name(), why)
	}
	// Admitted by role: a gateway's lead back, a member's lead elsewhere.
	if p.serving {
		p.returns = routes
	} else {
		p.ways = routes
		links = p.injectReturns(a, v, links)
	}
	p.state.Links = append(p.state.Links, links...)
}

// injectReturns has the ways back to members on a node that stands by, too: while a
// gateway changes, others may know of it before this node does, or not yet. It
// returns links with those that these ways need; where both need one, it has to
// lead to all members. What is in their way the node says when it serves.
func (p *planner) injectReturns(a adapter.Adapter, v adapter.View, links []state.Link) []state.Link {
	if len(p.links.standby) == 0 {
		return links
	}
	v.Serving, v.Gateway, v.Remote = true, p.self, nil
	additions, _ := a.Inject(v, p.facts.Adapter)
	more, routes, _ := Admit(v, additions)
	p.returns = routes
	links = slices.DeleteFunc(links, func(l state.Link) bool {
		return slices.ContainsFunc(more, func(m state.Link) bool { return m.Name == l.Name })
	})
	return append(links, more...)
}

func (p *planner) view() adapter.View {
	v := adapter.View{Self: *p.self, Serving: p.serving, Gateway: p.gateway, Interface: p.facts.Interface, LAN: p.facts.LAN}
	for _, n := range p.locations[p.own].Nodes {
		// A member with a link of its own has no need of another way.
		if n != p.self && n.Spoken && !p.links.live(n) {
			v.Members = append(v.Members, *n)
		}
	}
	if p.serving {
		return v // the core leads it into the tunnel itself
	}
	v.Remote = make([]adapter.Remote, 0, len(p.remote))
	for i := range p.remote {
		r := &p.remote[i]
		if r.mute || r.hop != nil || p.api.exempt(r.prefix) {
			continue
		}
		v.Remote = append(v.Remote, adapter.Remote{Prefix: r.prefix, Location: p.partyName(r.claim), MTU: r.mtu})
	}
	return v
}

func (p *planner) partyName(c *claim) string {
	if c.kind == peerKind {
		return "peer/" + p.snapshot.Peers[c.party].Name
	}
	return p.locations[c.party].Name
}

// routes are the ways to other locations, over links and the adapter's, the ways back to members, and what
// stands whatever happens to links and agents: an unreachable under everything
// that must not leave in clear, a throw over own ground that a wider prefix of
// somebody else encloses, and one over each API server address that is to be
// reached without the mesh (apiserver.go has those that stand under a route); and
// one that takes in what is for an IPv6 WireGuard address that no link has.
//
// They are made in the normal order of a State, which then costs nothing to
// bring about: at ten thousand nodes that is most of the work.
func (p *planner) routes() {
	apart := make([]state.Route, 0, len(p.shadowed)+len(p.api.addresses)+1)
	throw := func(dst netip.Prefix) {
		apart = append(apart, state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Throw})
	}
	for _, dst := range p.shadowed {
		throw(dst)
	}
	for _, a := range p.api.addresses {
		throw(single(a))
	}
	if a := p.self.WireGuardIP(false); a.IsValid() && p.facts.Adapter.Unnumbered {
		// No link has it. On lo it would pass for one of the node's: IPv6 has
		// neither a label nor a scope that keeps it from that.
		apart = append(apart, state.Route{Table: state.TableOverlay, Dst: single(a), Type: state.Local})
	}
	for _, list := range [][]state.Route{p.ways, p.returns, apart} {
		slices.SortFunc(list, func(a, b state.Route) int { return comparePrefix(a.Dst, b.Dst) })
	}
	apart = slices.Compact(apart)

	tunnelled := 0
	if p.serving || len(p.links.present)+len(p.links.standby) > 0 {
		tunnelled = len(p.remote)
	}
	all := make([]state.Route, 0, tunnelled+len(p.ways)+len(p.returns)+len(apart)+len(p.remote))
	// Routes are large, and made where they stay.
	add := func(r *state.Route) {
		all = append(all, *r)
		if r := &all[len(all)-1]; r.Metric == 0 && r.Dst.Addr().Is6() {
			r.Metric = defaultMetric6
		}
	}
	ways := p.ways
	before := func(dst netip.Prefix) {
		for len(apart) > 0 && comparePrefix(apart[0].Dst, dst) <= 0 {
			add(&apart[0])
			apart = apart[1:]
		}
	}
	for i := range p.remote {
		dst := p.remote[i].prefix
		before(dst)
		if r, ok := p.tunnelRoute(&p.remote[i]); ok {
			add(&r)
		}
		for len(ways) > 0 && comparePrefix(ways[0].Dst, dst) <= 0 {
			add(&ways[0])
			ways = ways[1:]
		}
		if !p.api.exempt(dst) {
			add(&state.Route{Table: state.TableOverlay, Dst: dst, Type: p.api.last(dst), Metric: state.MetricLast})
		}
	}
	p.tellSourceless()
	for i := range apart {
		add(&apart[i])
	}
	for i := range p.returns {
		add(&p.returns[i])
	}
	p.state.Routes = all
}

// tellSourceless says what this node cannot speak to, for want of an address.
func (p *planner) tellSourceless() {
	for _, v4 := range []bool{true, false} {
		first, more := netip.Prefix{}, 0
		for _, prefix := range p.sourceless {
			switch {
			case prefix.Addr().Is4() != v4:
			case first.IsValid():
				more++
			default:
				first = prefix
			}
		}
		if !first.IsValid() {
			continue
		}
		what, family := first.String(), "IPv6"
		if more > 0 {
			what += fmt.Sprintf(" and %d more", more)
		}
		if v4 {
			family = "IPv4"
		}
		p.note("NoSourceAddress", "node/"+p.self.Name,
			"%s: not served on node %s, which has no internal address of %s that others would answer to; nothing for it leaves in clear. If it should be served, give the node an address of that family (kubelet's --node-ip, or kilo.squat.ai/force-internal-ip)",
			what, p.self.Name, family)
	}
}

// defaultMetric6 is what the kernel makes of an IPv6 route's metric 0
// (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024

// ownGround lists own prefixes that some remote prefix encloses.
func (p *planner) ownGround() []netip.Prefix {
	var wide []netip.Prefix
	for i := range p.remote {
		if r := &p.remote[i]; r.kind != clusterKind {
			wide = append(wide, r.prefix)
		}
	}
	if len(wide) == 0 {
		return nil
	}
	var own []netip.Prefix
	add := func(q netip.Prefix) {
		if slices.ContainsFunc(wide, func(w netip.Prefix) bool { return covers(w, q) }) {
			own = append(own, q)
		}
	}
	for _, c := range p.ground.claims {
		if c.kind != peerKind && int(c.party) == p.own {
			add(c.prefix)
		}
	}
	for _, c := range p.facts.Connected {
		add(c.Masked())
	}
	// What never leaves a host or its link has no business with a default route.
	for _, c := range []string{"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::1/128", "fe80::/10", "ff00::/8"} {
		add(netip.MustParsePrefix(c))
	}
	// Nor have Services: what stands behind them has an address of its own.
	for _, services := range p.snapshot.ServicePrefixes {
		if !slices.ContainsFunc(p.remote, func(r remote) bool { return r.kind == clusterKind && covers(services, r.prefix) }) {
			add(services.Masked())
		}
	}
	// Nor has an API server that is in nobody's location: the Peer may be down.
	for _, server := range p.snapshot.APIServers {
		at := single(server.Addr())
		elsewhere := func(r remote) bool { return r.kind != peerKind && covers(r.prefix, at) }
		if !slices.ContainsFunc(p.remote, elsewhere) {
			add(at)
		}
	}
	slices.SortFunc(own, comparePrefix)
	return slices.Compact(own)
}

// rules send packets to our tables. They stand on every node, in both
// families, whatever its role: without them the standing routes mean nothing.
func (p *planner) rules() {
	for _, v6 := range []bool{false, true} {
		p.state.Rules = append(p.state.Rules,
			// What comes in as WireGuard must find its way back outside the
			// tunnel, or strict rp_filter drops it where the other end's only
			// address rides the tunnel.
			state.Rule{Priority: state.PriorityOverlay, V6: v6, Invert: true, Mark: state.Mark, Table: state.TableOverlay},
		)
		for _, l := range p.tunnels() {
			p.state.Rules = append(p.state.Rules,
				state.Rule{Priority: state.PriorityTunnel, V6: v6, Proto: "udp", SrcPort: l.Tunnel.Port, Table: state.TableMain},
				state.Rule{Priority: state.PriorityTunnel, V6: v6, Proto: "udp", DstPort: l.Tunnel.Port, Table: state.TableMain},
			)
			if p.serving || len(p.links.standby) > 0 {
				p.state.Rules = append(p.state.Rules,
					state.Rule{Priority: state.PriorityReturn, V6: v6, IIF: l.Name, Table: state.TableReturn})
			}
		}
		for _, a := range p.api.outside {
			for _, port := range p.api.ports {
				if a.Is6() == v6 {
					// It serves the reverse path filter as well, for what asks.
					p.state.Rules = append(p.state.Rules,
						state.Rule{Priority: state.PriorityTunnel, V6: v6, From: a, Proto: "tcp", SrcPort: port, Table: state.TableMain})
				}
			}
		}
	}
}

// tunnels are the WireGuard links.
func (p *planner) tunnels() []state.Link {
	return slices.DeleteFunc(slices.Clone(p.state.Links), func(l state.Link) bool { return l.Tunnel == nil })
}
