package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Admit sorts an adapter's additions into what the mesh takes and why it
// refuses the rest. So "only inter-location routes" holds for every adapter.
//
// The routes returned may be the very slice that the adapter gave.
func Admit(v adapter.View, a adapter.Additions) (links []state.Link, routes []state.Route, refused []error) {
	for _, l := range a.Links {
		if err := admitLink(&v, &l); err != nil {
			refused = append(refused, err)
			continue
		}
		links = append(links, l)
	}
	d := newDoor(&v)
	out := make(map[int]bool) // routes refused, by index
	for i := range a.Routes {
		if err := d.admit(&a.Routes[i]); err != nil {
			refused = append(refused, err)
			out[i] = true
		}
	}
	if len(out) == 0 {
		return links, a.Routes, refused
	}
	for i := range a.Routes {
		if !out[i] {
			routes = append(routes, a.Routes[i])
		}
	}
	return links, routes, refused
}

func refusal(r *state.Route, why string) error {
	return fmt.Errorf("route to %s in table %d: %s", r.Dst, r.Table, why)
}

// admitLink lets the encapsulation link pass: without an address, over the
// interface that leads to the location, and to nodes of the location only.
func admitLink(v *adapter.View, l *state.Link) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("link %s of kind %s: %s", l.Name, l.Kind, fmt.Sprintf(format, args...))
	}
	switch {
	case l.Kind != state.VXLAN || l.Name != state.VXLANLink || l.VXLAN == nil || l.Tunnel != nil:
		return refuse("only a VXLAN link named %s may be added", state.VXLANLink)
	case len(l.Addresses) > 0:
		return refuse("it may have no address, and %s is one", l.Addresses[0])
	case l.VXLAN.Device != v.LAN.Device || l.VXLAN.Device == "":
		return refuse("it stands on %q, and the location is reached through %q", l.VXLAN.Device, v.LAN.Device)
	case !hasAddress(&v.Self, l.VXLAN.Local):
		return refuse("%s, from which it sends, is no internal address of this node", l.VXLAN.Local)
	}
	for i := range l.VXLAN.Remotes {
		r := &l.VXLAN.Remotes[i]
		isNode := func(n model.Node) bool { return hasAddress(&n, r.Outer) && hasAddress(&n, r.Inner) }
		if !slices.ContainsFunc(v.Members, isNode) {
			return refuse("remote %s at %s is no node of the own location", r.Inner, r.Outer)
		}
	}
	return nil
}

func hasAddress(n *model.Node, a netip.Addr) bool {
	return a.IsValid() && n.InternalIP(a.Is4()) == a
}

// door admits routes one by one. Thousands come, by few next hops and most
// often in the order of what they lead to.
type door struct {
	*adapter.View
	led   []bool                // by index of Remote: there is a route to it
	back  map[netip.Prefix]bool // by address or pods of a member: there is a route to it
	next  int                   // index of Remote that is most likely asked for next
	loops map[netip.Addr]string // by next hop: the prefix that makes it a loop, or ""
}

func newDoor(v *adapter.View) *door {
	d := &door{View: v, led: make([]bool, len(v.Remote)), back: map[netip.Prefix]bool{}, loops: map[netip.Addr]string{}}
	if !v.Serving {
		return d
	}
	for i := range v.Members {
		for _, a := range v.Members[i].InternalIPs {
			d.back[single(a.Addr())] = false
		}
		if v.Members[i].NodesOnly {
			continue // its pods never come out of the tunnel as themselves
		}
		for _, p := range v.Members[i].PodPrefixes {
			d.back[p.Masked()] = false
		}
	}
	return d
}

// find returns the index of a remote prefix, or -1.
func (d *door) find(p netip.Prefix) int {
	if d.next < len(d.Remote) && d.Remote[d.next].Prefix == p {
		d.next++
		return d.next - 1
	}
	i, ok := slices.BinarySearchFunc(d.Remote, p, func(r adapter.Remote, p netip.Prefix) int { return comparePrefix(r.Prefix, p) })
	if !ok {
		return -1
	}
	d.next = i + 1
	return i
}

func (d *door) admit(r *state.Route) error {
	switch {
	case r.Type != state.Unicast || r.Metric != 0:
		return refusal(r, "only unicast routes without a metric may be added")
	case r.Device == "":
		return refusal(r, "it names no device")
	case r.Via.IsValid() && r.Via.Is4() != r.Dst.Addr().Is4():
		return refusal(r, fmt.Sprintf("its next hop %s is of the other family", r.Via))
	case r.Source.IsValid() && r.Source.Is4() != r.Dst.Addr().Is4():
		return refusal(r, fmt.Sprintf("its source %s is of the other family", r.Source))
	case r.Device == d.Interface:
		return refusal(r, "what goes into "+d.Interface+" is the core's to say")
	}
	if loop := d.loop(r.Via); loop != "" {
		return refusal(r, fmt.Sprintf("its next hop %s lies in %s, which is reached through the overlay itself", r.Via, loop))
	}
	twice := false
	switch r.Table {
	case state.TableOverlay:
		if d.Serving {
			return refusal(r, "the gateway's routes to other locations are the core's to say")
		}
		i := d.find(r.Dst)
		if i < 0 {
			return refusal(r, "it does not lead to another location")
		}
		twice, d.led[i] = d.led[i], true
	case state.TableReturn:
		if !d.Serving {
			return refusal(r, "only a gateway has a return table")
		}
		led, member := d.back[r.Dst]
		if !member {
			return refusal(r, "it does not lead to a member of the own location")
		}
		twice, d.back[r.Dst] = led, true
	default:
		return refusal(r, "it is in none of our tables")
	}
	if twice {
		return refusal(r, "it is there twice")
	}
	return nil
}

// loop names the remote prefix that a next hop lies in: what goes there would
// come back into the overlay. "" where it does not.
func (d *door) loop(via netip.Addr) string {
	if !via.IsValid() {
		return ""
	}
	loop, known := d.loops[via]
	if known {
		return loop
	}
	next := d.next // looking must not lose the place
	for bits := via.BitLen(); bits >= 0 && loop == ""; bits-- {
		if p, err := via.Prefix(bits); err == nil && d.find(p) >= 0 && !d.ownAddress(via) {
			loop = p.String()
		}
	}
	d.next = next
	d.loops[via] = loop
	return loop
}

// ownAddress tells whether a is in a prefix of the own location's nodes, which
// stands above any wider prefix of others.
func (d *door) ownAddress(a netip.Addr) bool {
	in := func(ps []netip.Prefix) bool {
		for _, p := range ps {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	if in(d.Self.PodPrefixes) || in(d.Self.InternalIPs) {
		return true
	}
	for i := range d.Members {
		if in(d.Members[i].PodPrefixes) || in(d.Members[i].InternalIPs) {
			return true
		}
	}
	return false
}
