package agent

import (
	"net/netip"

	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// duty is what a node does to have its location served, as the last pass saw it.
type duty struct {
	snapshot model.Snapshot
	self     *model.Node
	location plan.Location
	// standby watches the serving gateway and takes over; witness watches with it.
	standby, witness bool
	// rank is the node's place among those that stand by, from 0.
	rank    int
	targets []question
	voters  []failover.Voter
	// tell are the nodes that are to hear who serves this location: its own, and
	// the armed gateways of others.
	tell []listener
}

// question is whom to ask: a gateway of another location, by its two addresses.
type question struct {
	Internal, Tunnel netip.Addr
}

// listener is a node that speaks of failover, and where.
type listener struct {
	Node     *model.Node
	From, To netip.Addr
	Tunnel   bool // the way leads through the tunnel
}

const (
	// targetsAtMost bounds how many gateways are asked.
	targetsAtMost = 3
	// witnessesAtMost bounds how many members watch.
	witnessesAtMost = 2
)

// dutyOf is pure. locations are the Snapshot's, as the plan has them.
func dutyOf(s model.Snapshot, locations []plan.Location, self string) *duty {
	me := s.Node(self)
	if me == nil || !me.Spoken {
		return nil
	}
	d := &duty{snapshot: s, self: me}
	for i := range locations {
		if locations[i].Name == me.Location {
			d.location = locations[i]
		}
	}
	gateway := d.location.Gateway
	if gateway == nil {
		return d
	}
	armed := map[*model.Node]bool{}
	for _, n := range d.location.Armed {
		if n != nil {
			armed[n] = true
		}
	}
	for _, n := range d.location.Armed {
		if n == nil || n == gateway {
			continue
		}
		if n == me {
			d.standby = true
			break
		}
		d.rank++
	}
	watching := 0
	for _, n := range d.location.Nodes {
		if !n.Spoken {
			continue
		}
		witness := false
		if n != gateway && !armed[n] && watching < witnessesAtMost {
			watching++
			witness = true
			d.witness = d.witness || n == me
		}
		if n != gateway && n != me {
			d.voters = append(d.voters, failover.Voter{Name: n.Name, Witness: witness})
		}
		if n != me {
			d.listen(n, false)
		}
	}
	for i := range locations {
		l := &locations[i]
		if l.Name == me.Location {
			continue
		}
		for _, n := range l.Armed {
			if n == nil {
				continue
			}
			if armed[me] {
				d.listen(n, true)
			}
			if n == l.Gateway && len(d.targets) < targetsAtMost {
				v4 := len(me.InternalIPs) == 0 || me.InternalIPs[0].Addr().Is4()
				if q := (question{n.InternalIP(v4), n.WireGuardIP(v4)}); q.Internal.IsValid() {
					d.targets = append(d.targets, q)
				}
			}
		}
	}
	return d
}

// listen adds a node to those that hear who serves.
func (d *duty) listen(n *model.Node, tunnel bool) {
	address := func(n *model.Node, v4 bool) netip.Addr {
		if tunnel {
			return n.WireGuardIP(v4)
		}
		return n.InternalIP(v4)
	}
	for _, v4 := range []bool{true, false} {
		if from, to := address(d.self, v4), address(n, v4); from.IsValid() && to.IsValid() {
			d.tell = append(d.tell, listener{n, from, to, tunnel})
			return
		}
	}
}

// listenerAt is the one that speaks from an address, by the tunnel or not.
func (d *duty) listenerAt(name string, from netip.Addr) (listener, bool) {
	for _, l := range d.tell {
		if l.Node.Name == name && l.To == from {
			return l, true
		}
	}
	return listener{}, false
}
