package plan

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Gateways that stand by. The first candidates of a location are armed: each
// keeps a WireGuard peer to every armed gateway of every other location, with a
// session in it, and so a change of gateway needs no handshake.
//
// WireGuard gives a prefix to one peer of a link, and takes from a peer only
// what it gives it: were the serving gateway and the one that stands by peers of
// one link, all would be lost from the moment that one end moves the prefixes
// until the other one does. So each armed gateway has a slot (model.Node.Slot),
// and is a peer on the link of its slot, kilo0 or kilo1, with all prefixes of its
// location. A change of gateway is then a change of routes, each end at its own
// time.
//
// The nodes of a location have strict reverse path filters on their own network,
// and what a gateway sends itself is answered there by whoever serves. So where
// nothing has failed (model.Node.Next) the others send to the new gateway, before it
// serves, what is its own by its own link: it takes that in by a link as well as by
// its network, while it still sends by the latter. Then it serves, then the old
// gateway and the members send by it, and last the others send by it what is
// theirs: whatever comes in on a strict interface is answered there at all times.
// Who is in between sees one direction of a connection, which chain "transit" in
// filter.go makes good.
//
// A pair of nodes speaks on the link of the other's slot, and a link listens on
// the port of the first one and its number more: X finds Y at Y's port plus the
// number of X's slot. So the first gateways of two locations use the first ports,
// as if there were no others, and what is sent to a standby leaves from the second
// port for the first: firewalls that let in one port alone let in what is asked
// from inside.

// linkNumber is the number, from 0, of the link on which others have n as a peer.
func linkNumber(n *model.Node) int { return max(n.Slot, 1) - 1 }

// arm finds who holds which slot. Equal claims: the serving gateway's, then those
// of ready nodes, then the better candidate's.
func (l *Location) arm() {
	for _, n := range l.Candidates {
		if n.Slot < 1 || n.Slot > state.TunnelSlots {
			continue
		}
		if o := l.Armed[n.Slot-1]; o == nil || n == l.Gateway || o != l.Gateway && n.Ready && !o.Ready {
			l.Armed[n.Slot-1] = n
		}
	}
	if l.Gateway != nil && l.Gateway.Slot == 0 {
		l.Armed[0] = l.Gateway // it has not read back yet that it is the first
	}
}

// armed tells whether n holds a slot.
func (l *Location) armed(n *model.Node) bool { return slices.Contains(l.Armed[:], n) }

// wanted are the nodes that should be armed, the serving gateway first, then the
// best that are ready. Where these are too few, those that hold a slot keep it:
// without an API server all nodes are called not ready.
func (l *Location) wanted(gateways int) []*model.Node {
	if l.Gateway == nil {
		return nil
	}
	out := []*model.Node{l.Gateway}
	rest := slices.DeleteFunc(slices.Clone(l.Candidates), func(n *model.Node) bool {
		return n == l.Gateway || !n.Ready && n.Slot == 0
	})
	first := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(rest, func(a, b *model.Node) int {
		return cmp.Or(cmp.Compare(first(a.Ready), first(b.Ready)), cmp.Compare(rank(a), rank(b)),
			cmp.Compare(first(a.Slot > 0), first(b.Slot > 0)))
	})
	out = append(out, rest...)
	return out[:min(len(out), gateways)]
}

// Slot returns the slot that the node called self should publish, from 1; 0: none.
// A node keeps the one it has while it is wanted.
func (m *Mesh) Slot(self string, gateways int) int {
	me := m.snapshot.Node(self)
	if me == nil || !me.Spoken {
		return 0
	}
	l := locationOf(m.Locations, me.Location)
	wanted := l.wanted(gateways)
	taken := make(map[int]*model.Node)
	for _, n := range wanted {
		if n.Slot >= 1 && n.Slot <= gateways && taken[n.Slot] == nil {
			taken[n.Slot] = n
		}
	}
	slot := 1
	for _, n := range wanted {
		held := n.Slot
		if taken[held] != n {
			for taken[slot] != nil {
				slot++
			}
			held, taken[slot] = slot, n
		}
		if n == me {
			return held
		}
	}
	return 0
}

// findStandby lists the armed gateways of other locations that this node, armed
// itself, has as peers beside those that serve.
func (l *links) findStandby() {
	p := l.p
	if !p.locations[p.own].armed(p.self) {
		return
	}
	for i := range p.locations {
		if i == p.own {
			continue
		}
		for _, n := range p.locations[i].Armed {
			if n != nil && !(p.serving && n == p.locations[i].Gateway) {
				l.standby[n] = true
			}
		}
	}
}

// standbyIPs adds to the allowed IPs of nodes what those that stand by, here or
// there, would carry if they served.
func (p *planner) standbyIPs(nodes map[*model.Node][]netip.Prefix) {
	if len(p.links.standby) == 0 {
		return
	}
	for i := range p.remote {
		r := &p.remote[i]
		if r.mute || r.kind == peerKind || r.tunnel || int(r.party) == p.own {
			continue
		}
		for _, n := range p.locations[r.party].Armed {
			if n == nil || !p.links.standby[n] && !p.before(r, n) {
				continue
			}
			// What has a peer of its own on that link stays with it.
			has := r.hop
			if has == nil {
				has = p.links.accepts(r)
			}
			if has != nil && linkNumber(has) == linkNumber(n) {
				continue
			}
			nodes[n] = append(nodes[n], r.prefix)
		}
	}
}

// before tells whether n serves the node that r is of, which is about to serve
// itself: what that one sends still comes by n.
func (p *planner) before(r *remote, n *model.Node) bool {
	return r.kind == clusterKind && r.hop == r.node && r.node.Next && n == p.locations[r.party].Gateway && p.links.has(n)
}

// keepsAlive tells whether this node keeps the session with n alive, one of the two
// standing by. A node without an endpoint does. Of two with one it is that which
// knocks at the lower port, the one most likely to be open.
func (p *planner) keepsAlive(n *model.Node) bool {
	switch mine, theirs := !p.self.Endpoint.IsZero(), !n.Endpoint.IsZero(); {
	case !mine:
		return true
	case !theirs:
		return false
	}
	return cmp.Or(cmp.Compare(linkNumber(p.self), linkNumber(n)), bytes.Compare(p.self.Key[:], n.Key[:])) < 0
}
