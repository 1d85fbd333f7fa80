package agent

import (
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// probeTargets says which locations this node has to ask whether their tunnel
// lives. It matters for the way to API servers alone (plan keeps their
// addresses out of the tunnel until it does), so most nodes of most clusters
// ask nobody:
//
//   - a node asks each other location that an API server's address belongs to;
//   - an API server's own node, and the gateway before it, ask every other
//     location, since answers go there.
//
// A serving gateway asks from its WireGuard address, which the other side
// always routes back into the tunnel. Its internal address might be an API
// server's, which the other side keeps out of the tunnel until its own probe
// was answered: each end would wait for the other. A member has its internal
// address only; its probe is answered once both gateways have found each other.
func probeTargets(s *model.Snapshot, locations []plan.Location, self string) []target {
	me := s.Node(self)
	if me == nil {
		return nil
	}
	hosts, here := apiLocations(s, locations, me)
	if len(hosts) == 0 {
		return nil
	}
	var own *plan.Location
	for i := range locations {
		if locations[i].Name == me.Location {
			own = &locations[i]
		}
	}
	serving := own != nil && own.Gateway != nil && own.Gateway.Name == me.Name
	all := here || serving && hosts[me.Location]

	var out []target
	for i := range locations {
		l := &locations[i]
		if l.Name == me.Location || l.Gateway == nil || !all && !hosts[l.Name] {
			continue
		}
		// One family is enough to know that the tunnel lives.
		for _, to := range l.Gateway.WireGuardIPs {
			from := me.InternalIP(to.Is4())
			if serving && me.WireGuardIP(to.Is4()).IsValid() {
				from = me.WireGuardIP(to.Is4())
			}
			if from.IsValid() {
				t := target{Place: place{Location: l.Name}, To: to, From: from}
				if serving {
					t.Peer = l.Gateway.Key
				}
				out = append(out, t)
				break
			}
		}
	}
	return out
}

// linkTargets returns the nodes that this one may have a link of its own with,
// to be asked over it, from one end's WireGuard address to the other's: those
// two lead over the link or nowhere.
func linkTargets(s *model.Snapshot, m *plan.Mesh, self string) []target {
	me := s.Node(self)
	var out []target
	for _, n := range m.Links(self) {
		for _, to := range n.WireGuardIPs {
			if from := me.WireGuardIP(to.Is4()); from.IsValid() {
				out = append(out, target{Place: place{Node: n.Name}, To: to, From: from, Peer: n.Key})
				break
			}
		}
	}
	return out
}

// apiLocations returns the locations whose prefixes hold an API server's
// address, and whether me itself is an API server's host.
func apiLocations(s *model.Snapshot, locations []plan.Location, me *model.Node) (hosts map[string]bool, here bool) {
	hosts = map[string]bool{}
	for _, server := range s.APIServers {
		a := server.Addr()
		for i := range locations {
			for _, n := range locations[i].Nodes {
				if belongs(n, a) {
					hosts[locations[i].Name] = true
				}
			}
		}
		here = here || hasInternal(me, a)
	}
	return hosts, here
}

// belongs tells whether the mesh carries a to n.
func belongs(n *model.Node, a netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	return hasInternal(n, a) || slices.Contains(n.WireGuardIPs, a) ||
		slices.ContainsFunc(n.PodPrefixes, in) || slices.ContainsFunc(n.AllowedLocationIPs, in)
}

func hasInternal(n *model.Node, a netip.Addr) bool {
	return slices.ContainsFunc(n.InternalIPs, func(p netip.Prefix) bool { return p.Addr() == a })
}
