package plan

import (
	"fmt"
	"net/netip"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/state"
)

// Admit sorts an adapter's additions into what the mesh takes and why it
// refuses the rest. So "only inter-location routes" holds for every adapter.
func Admit(v adapter.View, a adapter.Additions) (links []state.Link, routes []state.Route, refused []error) {
	for _, l := range a.Links {
		if err := admitLink(l); err != nil {
			refused = append(refused, err)
			continue
		}
		links = append(links, l)
	}
	remote := make(map[netip.Prefix]bool, len(v.Remote))
	for _, r := range v.Remote {
		remote[r.Prefix] = true
	}
	taken := make(map[routeKey]bool, len(a.Routes))
	for _, r := range a.Routes {
		k := routeKey{r.Table, r.Dst}
		err := admitRoute(&v, remote, r)
		if err == nil && taken[k] {
			err = refusal(r, "it is there twice")
		}
		if err != nil {
			refused = append(refused, err)
			continue
		}
		taken[k] = true
		routes = append(routes, r)
	}
	return links, routes, refused
}

type routeKey struct {
	table int
	dst   netip.Prefix
}

func refusal(r state.Route, why string) error {
	return fmt.Errorf("route to %s in table %d: %s", r.Dst, r.Table, why)
}

func admitLink(l state.Link) error {
	if l.Kind != state.VXLAN || l.Name != state.VXLANLink || l.VXLAN == nil {
		return fmt.Errorf("link %s of kind %s: only a VXLAN link named %s may be added", l.Name, l.Kind, state.VXLANLink)
	}
	return nil
}

func admitRoute(v *adapter.View, remote map[netip.Prefix]bool, r state.Route) error {
	switch {
	case r.Type != state.Unicast || r.Metric != 0:
		return refusal(r, "only unicast routes without a metric may be added")
	case r.Device == "":
		return refusal(r, "it names no device")
	case r.Via.IsValid() && r.Via.Is4() != r.Dst.Addr().Is4():
		return refusal(r, fmt.Sprintf("its next hop %s is of the other family", r.Via))
	case r.Source.IsValid() && r.Source.Is4() != r.Dst.Addr().Is4():
		return refusal(r, fmt.Sprintf("its source %s is of the other family", r.Source))
	case r.Device == v.Interface:
		return refusal(r, "what goes into "+v.Interface+" is the core's to say")
	}
	// A next hop inside what itself goes through the overlay would loop.
	if r.Via.IsValid() {
		for bits := r.Via.BitLen(); bits >= 0; bits-- {
			if p, err := r.Via.Prefix(bits); err == nil && remote[p] && !ownAddress(v, r.Via) {
				return refusal(r, fmt.Sprintf("its next hop %s lies in %s, which is reached through the overlay itself", r.Via, p))
			}
		}
	}
	switch r.Table {
	case state.TableOverlay:
		if v.Serving {
			return refusal(r, "the gateway's routes to other locations are the core's to say")
		}
		if !remote[r.Dst] {
			return refusal(r, "it does not lead to another location")
		}
	case state.TableReturn:
		if !v.Serving {
			return refusal(r, "only a gateway has a return table")
		}
		if !member(v, r.Dst) {
			return refusal(r, "it does not lead to a member of the own location")
		}
	default:
		return refusal(r, "it is in none of our tables")
	}
	return nil
}

// ownAddress tells whether a is in a prefix of the own location's nodes, which
// stands above any wider prefix of others.
func ownAddress(v *adapter.View, a netip.Addr) bool {
	in := func(ps []netip.Prefix) bool {
		for _, p := range ps {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	if in(v.Self.PodPrefixes) || in(v.Self.InternalIPs) {
		return true
	}
	for i := range v.Members {
		if in(v.Members[i].PodPrefixes) || in(v.Members[i].InternalIPs) {
			return true
		}
	}
	return false
}

func member(v *adapter.View, dst netip.Prefix) bool {
	for i := range v.Members {
		for _, a := range v.Members[i].InternalIPs {
			if single(a.Addr()) == dst {
				return true
			}
		}
	}
	return false
}
