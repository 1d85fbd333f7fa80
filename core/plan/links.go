package plan

import (
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

// With granularity cross, nodes of different locations meet over links of
// their own; with full, all nodes do. What follows is decided per pair, and
// both ends decide the same from the same Snapshot:
//
//   - A pair may have a link when both publish that they mesh themselves (in
//     one location: when both publish full), and one of the two can be reached.
//     Until everybody says so a rolling change leaves a pair on its gateways.
//   - A link serves once it answers. Each end probes the other's WireGuard
//     address, which leads over the link or nowhere, and publishes with whom it
//     has no answer (Node.Silent): nodes that forward have to know.
//   - A serving gateway also forwards for its members, by destination alone. It
//     uses a link to a node, instead of that node's gateway, only when every
//     member may have a link with that node and so needs nobody to forward: a
//     packet and its answer then take the same way, and strict rp_filter holds.
//
// Everything else goes by the two gateways.

// meshesItself tells whether a node says that it has links of its own.
func meshesItself(n *model.Node) bool {
	return n.Spoken && (n.Granularity == model.Cross || n.Granularity == model.Full)
}

// company sums up a location's nodes for the question whether all of them may
// have a link with some node elsewhere.
type company struct {
	mesh      bool // all of them mesh themselves
	reachable bool // all of them have an endpoint
}

func companyOf(l *Location) company {
	c := company{true, true}
	for _, n := range l.Nodes {
		c.mesh = c.mesh && meshesItself(n)
		c.reachable = c.reachable && !n.Endpoint.IsZero()
	}
	return c
}

// all tells whether all of them may have a link with n.
func (c company) all(n *model.Node) bool {
	return c.mesh && meshesItself(n) && (c.reachable || !n.Endpoint.IsZero())
}

// links are this node's links with other nodes.
type links struct {
	p         *planner
	companies []company // by location
	present   map[*model.Node]bool
	// standby are peers that carry nothing for now; see standby.go.
	standby map[*model.Node]bool
}

func newLinks(p *planner) links {
	l := links{p: p, companies: make([]company, len(p.locations)), present: make(map[*model.Node]bool, len(p.locations)), standby: map[*model.Node]bool{}}
	for i := range p.locations {
		l.companies[i] = companyOf(&p.locations[i])
	}
	for i := range p.locations {
		if meshesItself(p.self) {
			for _, n := range p.locations[i].Nodes {
				if n != p.self && l.may(p.self, p.own, n, i) {
					// The own probes know first.
					l.present[n] = p.facts.Direct[n.Name] && !silent(n, p.self)
				}
			}
		}
		if g := p.locations[i].Gateway; p.serving && i != p.own && g != nil {
			l.present[g] = true
		}
	}
	l.findStandby()
	return l
}

// may tells whether nodes a and b, of locations i and j, may have a link of
// their own.
func (l *links) may(a *model.Node, i int, b *model.Node, j int) bool {
	if !meshesItself(a) || !meshesItself(b) || a.Key.IsZero() || b.Key.IsZero() {
		return false
	}
	if i == j {
		return a.Granularity == model.Full && b.Granularity == model.Full
	}
	aServes, bServes := l.p.locations[i].Gateway == a, l.p.locations[j].Gateway == b
	if aServes && bServes {
		return true
	}
	if a.Endpoint.IsZero() && b.Endpoint.IsZero() {
		return false
	}
	return (!aServes || l.companies[i].all(b)) && (!bServes || l.companies[j].all(a))
}

// silent tells whether n publishes that its link with o does not answer.
func silent(n, o *model.Node) bool {
	_, found := slices.BinarySearch(n.Silent, o.Name)
	return found
}

// has tells whether there is a link with n, answering or not.
func (l *links) has(n *model.Node) bool { _, ok := l.present[n]; return ok }

// peers tells whether n is a WireGuard peer here, be it one that stands by.
func (l *links) peers(n *model.Node) bool { return l.has(n) || l.standby[n] }

// live tells whether the link with n serves.
func (l *links) live(n *model.Node) bool { return l.present[n] }

// hop is the node over whose link a claim's prefix is reached from here; nil:
// the host CNI's way to the own gateway, a Peer's own link, or no way at all.
func (l *links) hop(c *claim) *model.Node {
	p := l.p
	switch {
	case c.node == p.self || c.mute:
		return nil
	case c.tunnel && l.peers(c.node):
		// The probe that finds out whether the link answers needs it first.
		return c.node
	case l.needsLink(c):
		return nil
	case c.kind == peerKind:
		return l.toGateway()
	case c.kind == clusterKind && l.live(c.node):
		return c.node
	case int(c.party) == p.own:
		return nil
	}
	gateway := p.locations[c.party].Gateway
	if p.serving || l.live(gateway) && l.byTheirGateway(c.node, int(c.party)) {
		if c.kind == clusterKind && c.node.Next && l.standby[c.node] {
			return c.node // see standby.go
		}
		return gateway
	}
	return l.toGateway()
}

// needsLink tells whether a claim leads over a link of its own or nowhere: the
// WireGuard address of a node that is not its location's gateway.
func (l *links) needsLink(c *claim) bool {
	return c.tunnel && c.node != l.p.locations[c.party].Gateway
}

// toGateway is the own gateway where this member has a link with it (full).
func (l *links) toGateway() *model.Node {
	if l.live(l.p.gateway) {
		return l.p.gateway
	}
	return nil
}

// byTheirGateway decides for this member, which has no link with n that serves
// but one with n's gateway, whether that is the way. So it is for what belongs
// to the gateway itself. For another member it is unless the own gateway has a
// link with n too: of the two gateways the one of the location with the lower
// name is spoken to directly, and the other end uses its own.
func (l *links) byTheirGateway(n *model.Node, i int) bool {
	p := l.p
	if n == p.locations[i].Gateway || p.gateway == nil {
		return true
	}
	ours := l.may(p.gateway, p.own, n, i) && !silent(p.gateway, n) && !silent(n, p.gateway)
	return !ours || p.locations[i].Name < p.self.Location
}

// accepts is the node over whose link a member takes what it sends through its
// own gateway; nil: nobody's. Members only: on a gateway a prefix already has
// its peer.
func (l *links) accepts(r *remote) *model.Node {
	if !l.p.serving && r.kind == clusterKind && l.has(r.node) && int(r.party) != l.p.own {
		return r.node
	}
	return nil
}

// Links returns the nodes that the node called self may have a link of its own
// with, other locations' gateways left out where self is one: those whose
// answers Facts.Direct is about. Sorted by name.
func (m *Mesh) Links(self string) []*model.Node {
	s := &m.snapshot
	p := &planner{snapshot: s, facts: &Facts{Self: self}, own: -1, locations: m.Locations, self: s.Node(self)}
	if p.self == nil || !meshesItself(p.self) {
		return nil
	}
	p.place()
	l := newLinks(p)
	var out []*model.Node
	for i := range s.Nodes {
		if n := &s.Nodes[i]; l.has(n) && !l.live(n) {
			out = append(out, n)
		}
	}
	return out
}
