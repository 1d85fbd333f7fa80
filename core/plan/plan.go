package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// DefaultKeepalive is used by a node without an endpoint, which may be behind
// NAT, where nobody asked for another interval. NAT routers forget a UDP flow
// after 30 seconds or more (RFC 4787, REQ-5 asks for two minutes); WireGuard's
// own documentation advises 25 seconds.
const DefaultKeepalive = 25 * time.Second

// Facts is what a node knows of itself.
type Facts struct {
	Self      string // name of the Node
	Interface string // name of the WireGuard link
	Port      uint16 // UDP port it listens on
	Key       model.Key
	TunnelMTU int // bytes
	// Connected are the networks of this node's own interfaces, those of the
	// host CNI and of the mesh left out: own ground, whatever others announce.
	Connected []netip.Prefix
	// LAN is the interface that has the node's internal address.
	LAN     adapter.LAN
	Adapter adapter.Facts
	// AdapterKnown tells that Adapter was discovered; without it the node
	// keeps other locations' traffic in, and carries none.
	AdapterKnown bool
	// Live tells for which locations a probe through the tunnel was answered
	// lately. It matters only to addresses of API servers; see apiserver.go.
	Live map[string]bool
	// Direct tells which nodes answered a probe over a link of their own
	// lately; see links.go.
	Direct map[string]bool
	// PathMTU is the largest packet, in bytes inside the tunnel, that was found to
	// reach a node whole over the WireGuard peer that it has here. A node is absent
	// while that is not known.
	PathMTU map[string]int
	// TagForwarded asks for a mark (state.MarkForwarded) on what this node
	// forwards for the mesh, for accepts in the chains of others to see.
	TagForwarded bool
}

// Role is what a node does for its location.
type Role string

const (
	// Gateway carries the location's traffic to other locations.
	Gateway Role = "gateway"
	// Member reaches other locations through its gateway.
	Member Role = "member"
	// Waiting means that something is missing; see Report.Waiting.
	Waiting Role = "waiting"
)

// Report is what a person wants to know about a plan.
type Report struct {
	Role Role
	// Location is the node's own; nil for a node that is not in the Snapshot.
	Location *Location
	// Locations are all locations.
	Locations []Location
	// Waiting says what is missing, one sentence each.
	Waiting []string
	// PodMTU is the best MTU in bytes for pods of this node: larger packets do
	// not fit every way to other locations. 0: not known.
	PodMTU int
	// RemoteIPv4 and RemoteIPv6 tell of which families anything leads elsewhere.
	RemoteIPv4, RemoteIPv6 bool
	// Warnings concern the whole cluster as this node sees it.
	Warnings []model.Warning
}

// planner carries one computation.
type planner struct {
	snapshot  *model.Snapshot
	facts     *Facts
	locations []Location
	own       int // index of the own location
	self      *model.Node
	gateway   *model.Node // of the own location; nil: none
	serving   bool
	ground    ground
	remote    []remote // sorted by prefix
	links     links
	// shadowed tells that some wider remote prefix encloses own ground, which
	// then needs exceptions.
	shadowed []netip.Prefix
	api      exceptions
	// carries tells that nothing is missing for the node to take part.
	carries bool
	// ways are the adapter's to other locations, returns those back to members
	// of the own.
	ways, returns []state.Route
	// sourceless are prefixes that this node has no source of its own for.
	sourceless []netip.Prefix
	state      state.State
	report     Report
}

// remote is a prefix that must reach another location, a Peer, or a node that
// this one has a link of its own with.
type remote struct {
	*claim
	// hop is the node whose WireGuard peer carries the prefix; nil: a Peer's
	// own, or, on a member, the way through the own gateway.
	hop *model.Node
	mtu int
}

// Plan returns what the kernel of node f.Self should hold, and a report. It
// never fails as a whole: what cannot be served is left out, kept from leaving
// in clear and reported. The adapter may be nil while none was chosen.
//
// A node that is not in the Snapshot has no plan: Report.Location is nil, and
// the empty State must not be applied.
func (m *Mesh) Plan(f Facts, a adapter.Adapter) (state.State, Report) {
	s := &m.snapshot
	p := &planner{snapshot: s, facts: &f, own: -1, locations: m.Locations}
	p.report.Locations = p.locations
	p.report.Role = Waiting
	p.self = s.Node(f.Self)
	if p.self == nil {
		p.wait("the Node object %q is not known yet: is --hostname the name of the Node?", f.Self)
		return p.state, p.report
	}
	l := p.place()
	p.report.Location = l
	p.ground = newGround(s, p.locations)
	p.links = newLinks(p)
	p.report.Warnings = append(p.report.Warnings, p.ground.warnings...)
	p.findRemote()
	p.findExceptions()

	p.link()
	if p.carries = p.ready(); p.carries {
		p.report.Role = Member
		if p.serving {
			p.report.Role = Gateway
		}
		p.peers()
		p.inject(a)
	}
	p.routes()
	p.adviseMTU()
	p.rules()
	p.filter()
	p.checkSubnets()
	return p.state, p.report
}

// Plan is Mesh.Plan for one question alone.
func Plan(s model.Snapshot, f Facts, a adapter.Adapter) (state.State, Report) {
	return NewMesh(s).Plan(f, a)
}

// place finds the own location.
func (p *planner) place() *Location {
	for i := range p.locations {
		if p.locations[i].Name == p.self.Location {
			p.own = i
		}
	}
	l := &p.locations[p.own]
	p.gateway, p.serving = l.Gateway, l.Gateway == p.self
	return l
}

func (p *planner) wait(format string, args ...any) {
	p.report.Waiting = append(p.report.Waiting, fmt.Sprintf(format, args...))
}

// warn notes what is wrong. What only this node sees is about this node, for its
// own agent is the one that tells of it.
func (p *planner) warn(kind, object, format string, args ...any) {
	p.report.Warnings = append(p.report.Warnings, model.Warning{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)})
}

// note is warn where nothing is broken.
func (p *planner) note(kind, object, format string, args ...any) {
	p.report.Warnings = append(p.report.Warnings, model.Warning{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...), Note: true})
}

// ready tells whether the node can take part, and notes what is missing.
func (p *planner) ready() bool {
	switch {
	case !p.self.Spoken:
		p.wait("the facts of this node were not published yet")
	case !p.facts.AdapterKnown:
		p.wait("the host CNI was not discovered yet")
	case p.gateway == nil:
		p.wait("no node of location %q can serve as gateway", p.self.Location)
	default:
		return true
	}
	return false
}

// findRemote lists what leads elsewhere, less what is own ground.
func (p *planner) findRemote() {
	p.remote = make([]remote, 0, len(p.ground.claims))
	for i := range p.ground.claims {
		c := &p.ground.claims[i]
		hop := p.links.hop(c)
		if c.kind != peerKind && int(c.party) == p.own && hop == nil || hop == nil && p.links.needsLink(c) {
			continue
		}
		if net, ok := p.connected(c.prefix); ok && (c.kind == peerKind || int(c.party) != p.own) {
			p.warn("OnLinkElsewhere", "node/"+p.self.Name,
				"%s, reached through %s, is not served on node %s: it lies in %s, a network that this node is connected to; give one of the two other addresses, or put both nodes into one location",
				c.prefix, c.through(p.snapshot, p.locations), p.self.Name, net)
			continue
		}
		if net, ok := p.gatewayConnected(c.prefix); ok && hop == nil && int(c.party) != p.own {
			p.warn("OnLinkElsewhere", "node/"+p.self.Name,
				"%s, reached through %s, is not served on node %s: it lies in %s, the network of %s, the gateway of its location; give one of the two other addresses, or put both nodes into one location",
				c.prefix, c.through(p.snapshot, p.locations), p.self.Name, net, p.gateway.Name)
			if c.kind != clusterKind {
				continue
			}
			muted := *c // nor does it leave in clear
			muted.mute = true
			c = &muted
		}
		p.remote = append(p.remote, remote{claim: c, hop: hop, mtu: p.pathMTU(c, hop)})
	}
	for i := range p.remote {
		v4 := p.remote[i].prefix.Addr().Is4()
		p.report.RemoteIPv4 = p.report.RemoteIPv4 || v4
		p.report.RemoteIPv6 = p.report.RemoteIPv6 || !v4
	}
	p.shadowed = p.ownGround()
}

// connected returns the connected network that encloses all of prefix.
func (p *planner) connected(prefix netip.Prefix) (netip.Prefix, bool) {
	for _, n := range p.facts.Connected {
		if covers(n, prefix) {
			return n, true
		}
	}
	return netip.Prefix{}, false
}

// gatewayConnected is connected for the gateway that serves this node, as far as
// it has published where it is: what it refuses, its members do not send it.
func (p *planner) gatewayConnected(prefix netip.Prefix) (netip.Prefix, bool) {
	if p.serving || p.gateway == nil {
		return netip.Prefix{}, false
	}
	for _, n := range p.gateway.InternalIPs {
		if n = n.Masked(); covers(n, prefix) {
			return n, true
		}
	}
	return netip.Prefix{}, false
}

// pathMTU is the largest packet in bytes that fits every tunnel on the way: the
// own one or the own gateway's, and that of the other side, and what was found
// out about the way between the two; 0 while unknown.
func (p *planner) pathMTU(c *claim, hop *model.Node) int {
	mtu, measured := p.facts.TunnelMTU, 0
	if hop != nil {
		measured = p.facts.PathMTU[hop.Name]
	}
	if hop == nil && !p.serving && p.gateway != nil {
		mtu = p.gateway.TunnelMTU
	}
	if hop == nil && c.kind != peerKind {
		hop = p.locations[c.party].Gateway
	}
	if hop != nil && hop.TunnelMTU > 0 && (mtu == 0 || hop.TunnelMTU < mtu) {
		mtu = hop.TunnelMTU
	}
	if measured > 0 && !c.prefix.Addr().Is4() {
		measured = max(measured, minIPv6MTU)
	}
	if measured > 0 && measured < mtu {
		return measured
	}
	return mtu
}

// link is the WireGuard link. Every node has one, so that taking over needs no
// new device; a member's has no peers.
func (p *planner) link() {
	l := p.tunnelLink(0)
	loopback := state.Link{Name: state.LoopbackLink, Kind: state.Loopback}
	for _, a := range p.self.WireGuardIPs {
		// A single address: a wider one would bring a route into main.
		switch {
		case !p.facts.AdapterKnown:
			// Where it is to be nobody knows yet. A CNI that starts would find it
			// on the link, and take that for its own.
		case !p.facts.Adapter.Unnumbered:
			l.Addresses = append(l.Addresses, single(a))
		case a.Is4():
			loopback.Addresses = append(loopback.Addresses, single(a))
		}
	}
	p.state.Links = append(p.state.Links, l)
	if len(loopback.Addresses) > 0 {
		p.state.Links = append(p.state.Links, loopback)
	}
}

func (p *planner) tunnelLink(number int) state.Link {
	l := state.Link{
		Name:   state.TunnelLink(p.facts.Interface, number),
		Kind:   state.WireGuard,
		MTU:    p.facts.TunnelMTU,
		Tunnel: &state.Tunnel{Key: p.facts.Key, Port: p.facts.Port + uint16(number), Mark: state.Mark},
		// While a gateway changes, what comes in on one link may be answered by
		// the other. WireGuard itself takes from a peer only what it may send. On
		// a link without an address Linux takes 2 for 1 (__fib_validate_source), so
		// that there the host CNI's 0 has to do.
		Loose: len(p.links.standby) > 0 && !p.facts.Adapter.Unnumbered,
	}
	if a := p.self.WireGuardIP(true); number > 0 && a.IsValid() && !p.facts.Adapter.Unnumbered {
		// The first link's, for the sake of Loose.
		l.Addresses = append(l.Addresses, single(a))
	}
	return l
}

// linkTo is the link on which n is a peer.
func (p *planner) linkTo(n *model.Node) string {
	if n == nil {
		return p.facts.Interface
	}
	return state.TunnelLink(p.facts.Interface, linkNumber(n))
}

// peers are the other locations' gateways, the nodes that this one has a link
// of its own with, and every Peer: the last on gateways alone.
func (p *planner) peers() {
	t := p.state.Links[0].Tunnel
	nodes, peers := p.allowedIPs()
	p.standbyIPs(nodes)
	others := map[int]*state.Tunnel{0: t}
	for i := range p.snapshot.Nodes {
		n := &p.snapshot.Nodes[i]
		if !p.links.peers(n) || n.Key == p.self.Key {
			continue
		}
		on := others[linkNumber(n)]
		if on == nil {
			l := p.tunnelLink(linkNumber(n))
			p.state.Links = append(p.state.Links, l)
			on, others[linkNumber(n)] = l.Tunnel, l.Tunnel
		}
		on.Peers = append(on.Peers, state.Peer{
			Name:       "node/" + n.Name,
			Key:        n.Key,
			Endpoint:   p.endpoint(n),
			AllowedIPs: nodes[n],
			Keepalive:  p.keepalive(n),
		})
	}
	if !p.serving {
		return
	}
	for i := range p.snapshot.Peers {
		peer := &p.snapshot.Peers[i]
		t.Peers = append(t.Peers, state.Peer{
			Name:         "peer/" + peer.Name,
			Key:          peer.Key,
			PresharedKey: peer.PresharedKey,
			Endpoint:     peer.Endpoint.AddrPort(),
			AllowedIPs:   peers[i],
			Keepalive:    peer.Keepalive,
		})
	}
}

// allowedIPs groups the remote prefixes by what carries them.
func (p *planner) allowedIPs() (nodes map[*model.Node][]netip.Prefix, peers [][]netip.Prefix) {
	nodes, peers = make(map[*model.Node][]netip.Prefix, len(p.links.present)), make([][]netip.Prefix, len(p.snapshot.Peers))
	share := len(p.remote)/(len(p.links.present)+1) + 8 // room for what one of them most often has
	for i := range p.remote {
		switch r := &p.remote[i]; {
		case r.mute:
		case r.kind == peerKind && r.hop == nil:
			peers[r.party] = append(peers[r.party], r.prefix)
		default:
			// What a member reaches through its gateway it accepts over the
			// node's own link too: the other side may move first.
			n := cmp.Or(r.hop, p.links.accepts(r))
			if n == nil {
				continue
			}
			list, begun := nodes[n]
			if !begun {
				list = make([]netip.Prefix, 0, share)
			}
			nodes[n] = append(list, r.prefix)
		}
	}
	return nodes, peers
}

// endpoint is where another location's gateway is reached: what it publishes,
// else where this node itself heard it last, else where some other node did. A
// NAT router may give each of its flows another port, so the own record, which
// outlives a device that is started anew, comes first.
func (p *planner) endpoint(g *model.Node) netip.AddrPort {
	if g.Location == p.self.Location {
		return p.lanEndpoint(g)
	}
	if !g.Endpoint.IsZero() {
		ep := g.Endpoint.AddrPort()
		return netip.AddrPortFrom(ep.Addr(), ep.Port()+uint16(linkNumber(p.self)))
	}
	if ep, ok := p.self.Discovered[g.Key]; ok && !p.inOverlay(ep.Addr()) {
		return ep
	}
	for i := range p.snapshot.Nodes {
		n := &p.snapshot.Nodes[i]
		// It speaks to others from other ports.
		if ep, ok := n.Discovered[g.Key]; ok && linkNumber(n) == linkNumber(p.self) && !p.inOverlay(ep.Addr()) {
			return ep
		}
	}
	return netip.AddrPort{}
}

// lanEndpoint is where a node of the own location is reached: its internal
// address. Its port is the one that it publishes, else the usual one here.
func (p *planner) lanEndpoint(n *model.Node) netip.AddrPort {
	port := cmp.Or(n.Endpoint.Port, p.facts.Port) + uint16(linkNumber(p.self))
	for _, mine := range p.self.InternalIPs {
		if a := n.InternalIP(mine.Addr().Is4()); a.IsValid() {
			return netip.AddrPortFrom(a, port)
		}
	}
	return netip.AddrPort{}
}

// inOverlay tells whether a is an address that the mesh itself carries, or a
// Service's: the tunnel must never be sent through itself.
func (p *planner) inOverlay(a netip.Addr) bool {
	for _, n := range p.snapshot.WireGuardSubnets {
		if n.Contains(a) {
			return true
		}
	}
	for _, n := range p.snapshot.ServicePrefixes {
		if n.Contains(a) {
			return true
		}
	}
	for _, n := range p.facts.Adapter.ClusterPrefixes {
		if n.Contains(a) {
			return true
		}
	}
	return p.inMesh(a)
}

// inMesh tells whether a is an address of a node, pod or Peer. What only a Peer's
// default route leads to is anywhere.
func (p *planner) inMesh(a netip.Addr) bool {
	for i := range p.ground.claims {
		if c := &p.ground.claims[i]; c.prefix.Contains(a) && !(c.kind == peerKind && c.prefix.Bits() == 0) {
			return true
		}
	}
	return false
}

func (p *planner) keepalive(g *model.Node) time.Duration {
	if p.self.Keepalive > 0 {
		return p.self.Keepalive
	}
	if g.Location == p.self.Location {
		return 0 // no NAT between the two
	}
	if p.links.standby[g] {
		if p.keepsAlive(g) {
			return DefaultKeepalive
		}
		return 0
	}
	// One side is enough to keep the flow alive. Both would also begin at the
	// same moment, when a gateway changes, with handshakes that cross on the
	// wire and cancel each other.
	if p.self.Endpoint.IsZero() {
		return DefaultKeepalive
	}
	return 0
}

// checkSubnets warns of nodes that share a location's name and no network:
// most often nobody has set a location.
func (p *planner) checkSubnets() {
	l := &p.locations[p.own]
	mine := p.self.InternalIPs
	for _, n := range l.Nodes {
		if n == p.self || !n.Spoken || len(mine) == 0 || len(n.InternalIPs) == 0 || n.Endpoint.IsZero() || p.self.Endpoint.IsZero() {
			continue
		}
		if !common(mine, n.InternalIPs) {
			p.warn("NoCommonSubnet", "node/"+p.self.Name,
				"nodes %s (%s) and %s (%s) are both in location %q and share no subnet; unless a router connects them, give them different locations (annotation kilo.squat.ai/location)",
				p.self.Name, mine[0], n.Name, n.InternalIPs[0], l.Name)
			return // one says it all
		}
	}
}

func common(a, b []netip.Prefix) bool {
	for _, p := range a {
		for _, q := range b {
			// A length that is not known proves nothing.
			if p.IsSingleIP() || q.IsSingleIP() || p.Overlaps(q) {
				return true
			}
		}
	}
	return false
}
