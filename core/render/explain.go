package render

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// Path is how a packet goes from one address to another, and whether its answer
// finds the way back, as the planner sees it.
type Path struct {
	From Party `json:"from"`
	To   Party `json:"to"`
	// There and Back are the hops of a packet and of its answer.
	There []Hop `json:"there,omitempty"`
	Back  []Hop `json:"back,omitempty"`
	// MTU is the largest packet in bytes that fits every tunnel on the way; 0: it
	// goes through none.
	MTU int `json:"mtu,omitempty"`
	// Breaks says where the path ends too early, and what to do; "": it does not.
	Breaks string `json:"breaks,omitempty"`
	// Note says what the mesh has to do with it, where that is nothing.
	Note string `json:"note,omitempty"`
}

// Party is whose an address is.
type Party struct {
	Address  netip.Addr `json:"address"`
	Kind     string     `json:"kind"` // "pod", "node", "WireGuard address", "allowed-location-ips", "Peer", "Service", "outside"
	Node     string     `json:"node,omitempty"`
	Peer     string     `json:"peer,omitempty"`
	Location string     `json:"location,omitempty"`
	Prefix   string     `json:"prefix,omitempty"` // that makes it theirs
}

// Hop is what one node does with the packet.
type Hop struct {
	At   string `json:"at"`
	Role string `json:"role"`
	// By is how it goes on: "host CNI", "tunnel", "delivered".
	By        string `json:"by"`
	To        string `json:"to,omitempty"` // "node/w1", "peer/laptop"
	Route     string `json:"route,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`
	AllowedIP string `json:"allowedIP,omitempty"` // of the receiving WireGuard peer, for the destination
	Accepted  string `json:"accepted,omitempty"`  // by the receiver, for the source
	MTU       int    `json:"mtu,omitempty"`
}

// Explain follows a packet from src to dst and its answer back.
func Explain(s model.Snapshot, src, dst netip.Addr) Path {
	e := explainer{s: &s, locations: plan.Locations(s), plans: map[string]planned{}}
	p := Path{From: e.whose(src), To: e.whose(dst)}
	switch {
	case src.Is4() != dst.Is4():
		p.Breaks = "one address is IPv4 and the other IPv6: no packet has both"
	case p.From.Kind == "Service":
		p.Note = "nothing is sent from a Service's address: ask about the pod or node that calls"
	case p.To.Kind == "Service":
		p.Note = "kube-proxy, or what stands in for it, translates a Service's address to a pod's where the packet starts: ask about that pod's address (kubectl get endpointslices)"
	case p.From.Kind == "outside" || p.To.Kind == "outside":
		out := p.To
		if p.From.Kind == "outside" {
			out = p.From
		}
		p.Note = fmt.Sprintf("%s is nobody's in this mesh: it is reached without the mesh, or not at all", out.Address)
	default:
		p.There, p.MTU, p.Breaks = e.follow(p.From, p.To)
		if p.Breaks == "" {
			var back int
			p.Back, back, p.Breaks = e.follow(p.To, p.From)
			if p.Breaks != "" {
				p.Breaks = "on the way back: " + p.Breaks
			}
			p.MTU = smaller(p.MTU, back)
		}
		if p.MTU == 0 && p.Breaks == "" {
			p.Note = "inside a location the host CNI carries it, and the mesh has no part in it"
		}
	}
	return p
}

func smaller(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

type planned struct {
	state  state.State
	report plan.Report
}

type explainer struct {
	s         *model.Snapshot
	locations []plan.Location
	plans     map[string]planned
}

// whose finds the party that an address belongs to: the longest prefix wins.
func (e *explainer) whose(a netip.Addr) Party {
	best, bits := Party{Address: a, Kind: "outside"}, -1
	offer := func(kind string, prefix netip.Prefix, node *model.Node, peer string) {
		if !prefix.Contains(a) || prefix.Bits() <= bits {
			return
		}
		bits = prefix.Bits()
		best = Party{Address: a, Kind: kind, Peer: peer, Prefix: prefix.Masked().String()}
		if node != nil {
			best.Node, best.Location = node.Name, node.Location
		}
	}
	for i := range e.s.Nodes {
		n := &e.s.Nodes[i]
		for _, p := range n.InternalIPs {
			offer("node", netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), n, "")
		}
		for _, w := range n.WireGuardIPs {
			offer("WireGuard address", netip.PrefixFrom(w, w.BitLen()), n, "")
		}
		for _, p := range n.PodPrefixes {
			offer("pod", p, n, "")
		}
		for _, p := range n.AllowedLocationIPs {
			offer("allowed-location-ips", p, n, "")
		}
	}
	for i := range e.s.Peers {
		for _, p := range e.s.Peers[i].AllowedIPs {
			offer("Peer", p, nil, e.s.Peers[i].Name)
		}
	}
	for _, p := range e.s.ServicePrefixes {
		offer("Service", p, nil, "")
	}
	return best
}

func (e *explainer) plan(node string) planned {
	p, known := e.plans[node]
	if !known {
		n := e.s.Node(node)
		p.state, p.report = plan.Plan(*e.s, plan.Facts{
			Self: node, Interface: "kilo0", Port: 51820, Key: n.Key, TunnelMTU: n.TunnelMTU,
			Connected: connected(n), AdapterKnown: true, Direct: answering(*e.s, n), Live: e.alive(),
		}, nil)
		e.plans[node] = p
	}
	return p
}

// alive takes every location for one that answers: whether it does shows in what
// the agents say, not in a plan.
func (e *explainer) alive() map[string]bool {
	out := map[string]bool{}
	for i := range e.locations {
		out[e.locations[i].Name] = true
	}
	return out
}

func (e *explainer) gateway(location string) *model.Node {
	for i := range e.locations {
		if e.locations[i].Name == location {
			return e.locations[i].Gateway
		}
	}
	return nil
}

// follow walks from one party to the other, at most as far as a packet lives.
func (e *explainer) follow(from, to Party) (hops []Hop, mtu int, breaks string) {
	at := from.Node
	if from.Peer != "" {
		// A Peer speaks with the gateway of the location that it wants to.
		location := to.Location
		if to.Peer != "" {
			return nil, 0, "Peers do not reach each other through the mesh on a way of their own: each speaks with the gateways"
		}
		g := e.gateway(location)
		if g == nil {
			return nil, 0, fmt.Sprintf("location %q has no gateway: does an agent run on any of its nodes?", location)
		}
		hop := Hop{At: "peer/" + from.Peer, Role: "peer", By: "tunnel", To: "node/" + g.Name, Endpoint: g.Endpoint.String(), MTU: g.TunnelMTU}
		held, accepted := e.accepts(g.Name, "peer/"+from.Peer, from.Address)
		if !held {
			return []Hop{hop}, 0, fmt.Sprintf("gateway %s does not hold Peer %s: was it accepted? See: kubectl get peer %[2]s -o yaml", g.Name, from.Peer)
		}
		hop.Accepted = accepted
		if accepted == "" {
			return []Hop{hop}, 0, fmt.Sprintf("gateway %s takes no packet from %s by Peer %s", g.Name, from.Address, from.Peer)
		}
		hops, mtu, at = append(hops, hop), g.TunnelMTU, g.Name
	}
	for range 8 {
		p := e.plan(at)
		node := e.s.Node(at)
		hop := Hop{At: "node/" + at, Role: string(p.report.Role)}
		if to.Peer == "" && to.Node == at {
			hop.By = "delivered"
			return append(hops, hop), mtu, ""
		}
		route := lookUp(p.state, to.Address)
		switch {
		case route != nil && route.Type == state.Unicast:
			hop.Route, hop.By, hop.MTU = routeText(route), "tunnel", route.MTU
			mtu = smaller(mtu, route.MTU)
			peer, allowed := receiver(p.state, to.Address)
			if peer == nil {
				return append(hops, hop), mtu, fmt.Sprintf("node %s leads %s into the tunnel, and no WireGuard peer there takes it", at, to.Address)
			}
			hop.To, hop.AllowedIP = peer.Name, allowed.String()
			if peer.Endpoint.IsValid() {
				hop.Endpoint = peer.Endpoint.String()
			}
			name, isNode := strings.CutPrefix(peer.Name, "node/")
			if !isNode {
				return append(hops, hop), mtu, "" // the Peer itself
			}
			other := e.s.Node(name)
			if !peer.Endpoint.IsValid() && node.Endpoint.IsZero() {
				hops = append(hops, hop)
				return hops, mtu, fmt.Sprintf("nobody knows an endpoint of node %s, and node %s has none either: neither can begin; set kilo.squat.ai/force-endpoint on one of them", name, at)
			}
			held, accepted := e.accepts(name, "node/"+at, from.Address)
			if !held {
				return append(hops, hop), mtu, fmt.Sprintf("node %s does not hold node %s as a WireGuard peer", name, at)
			}
			if accepted == "" {
				accepted = "none: translated to an address of node " + cmp.Or(from.Node, at) + " where it starts"
			}
			hop.Accepted = accepted
			hops, at = append(hops, hop), other.Name
		case to.Peer == "" && to.Location == node.Location:
			hop.By, hop.To = "host CNI", "node/"+to.Node
			hops, at = append(hops, hop), to.Node
		case p.report.Role == plan.Member:
			g := e.gateway(node.Location)
			hop.By, hop.To = "host CNI", "node/"+g.Name
			hops, at = append(hops, hop), g.Name
		default:
			why := "no route leads there"
			if route != nil {
				hop.Route = routeText(route)
				why = "what stands there is: " + hop.Route
			}
			for _, w := range p.report.Waiting {
				why += "; " + w
			}
			return append(hops, hop), mtu, fmt.Sprintf("node %s cannot send to %s: %s", at, to.Address, why)
		}
	}
	return hops, mtu, "the packet goes in a circle"
}

// accepts tells whether a node holds a WireGuard peer, and by which of its allowed
// IPs it takes packets of that source from it.
func (e *explainer) accepts(node, peer string, source netip.Addr) (held bool, allowed string) {
	for _, l := range e.plan(node).state.Links {
		if l.Tunnel == nil {
			continue
		}
		for _, p := range l.Tunnel.Peers {
			if p.Name != peer {
				continue
			}
			held = true
			if i := longest(p.AllowedIPs, source); i >= 0 {
				allowed = p.AllowedIPs[i].String()
			}
		}
	}
	return held, allowed
}

// lookUp is what table 1107 says of an address: the longest prefix, then the
// lowest metric; nil: nothing.
func lookUp(s state.State, a netip.Addr) *state.Route {
	var best *state.Route
	for i := range s.Routes {
		r := &s.Routes[i]
		if r.Table != state.TableOverlay || !r.Dst.Contains(a) {
			continue
		}
		if best == nil || r.Dst.Bits() > best.Dst.Bits() || r.Dst.Bits() == best.Dst.Bits() && r.Metric < best.Metric {
			best = r
		}
	}
	return best
}

// receiver is the WireGuard peer that an address is sent to.
func receiver(s state.State, a netip.Addr) (peer *state.Peer, allowed netip.Prefix) {
	for _, l := range s.Links {
		if l.Tunnel == nil {
			continue
		}
		for i := range l.Tunnel.Peers {
			p := &l.Tunnel.Peers[i]
			if at := longest(p.AllowedIPs, a); at >= 0 && (peer == nil || p.AllowedIPs[at].Bits() > allowed.Bits()) {
				peer, allowed = p, p.AllowedIPs[at]
			}
		}
	}
	return peer, allowed
}

// longest is the index of the longest prefix that holds a, or -1.
func longest(prefixes []netip.Prefix, a netip.Addr) int {
	best := -1
	for i, p := range prefixes {
		if p.Contains(a) && (best < 0 || p.Bits() > prefixes[best].Bits()) {
			best = i
		}
	}
	return best
}

func routeText(r *state.Route) string {
	return strings.TrimPrefix(strings.TrimSpace(r.String()), "route ")
}

// Text is the path, a line a hop, for people.
func (p Path) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "from  %s\nto    %s\n", p.From, p.To)
	way := func(title string, hops []Hop) {
		if len(hops) > 0 {
			fmt.Fprintf(&b, "\n%s\n", title)
		}
		for i, h := range hops {
			fmt.Fprintf(&b, "%2d  %s\n", i+1, h.text())
		}
	}
	way("there", p.There)
	way("back", p.Back)
	b.WriteByte('\n')
	if p.MTU > 0 {
		fmt.Fprintf(&b, "mtu: packets of up to %d bytes fit every tunnel on the way\n", p.MTU)
	}
	if p.Note != "" {
		fmt.Fprintf(&b, "note: %s\n", p.Note)
	}
	if p.Breaks != "" {
		fmt.Fprintf(&b, "BREAKS: %s\n", p.Breaks)
	}
	return b.String()
}

// String says whose an address is.
func (p Party) String() string {
	switch {
	case p.Peer != "":
		return fmt.Sprintf("%s: Peer %s (%s)", p.Address, p.Peer, p.Prefix)
	case p.Node != "":
		return fmt.Sprintf("%s: %s of node %s, location %q (%s)", p.Address, p.Kind, p.Node, oneLine(p.Location), p.Prefix)
	case p.Prefix != "":
		return fmt.Sprintf("%s: %s (%s)", p.Address, p.Kind, p.Prefix)
	}
	return fmt.Sprintf("%s: %s", p.Address, p.Kind)
}

func (h Hop) text() string {
	at := h.At
	if h.Role != "" && h.Role != "peer" {
		at += " (" + h.Role + ")"
	}
	switch h.By {
	case "delivered":
		return at + ": is there"
	case "host CNI":
		return at + ": by the host CNI to " + h.To
	case "tunnel":
		parts := []string{at + ": through the tunnel to " + h.To}
		add := func(what, value string) {
			if value != "" {
				parts = append(parts, what+" "+value)
			}
		}
		add("endpoint", h.Endpoint)
		add("route", h.Route)
		add("allowed IP", h.AllowedIP)
		add("its source is taken by", h.Accepted)
		return strings.Join(parts, "\n      ")
	}
	return at + ": stops; " + cmp.Or(h.Route, "no route")
}
