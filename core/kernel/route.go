package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// defaultMetric6 is what the kernel makes of an IPv6 route's metric 0
// (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024

// observeRoutes reads the routes of our protocol in our tables.
func (k *Kernel) observeRoutes(names names) ([]state.Route, error) {
	var routes []state.Route
	var errs []error
	for _, table := range []int{state.TableOverlay, state.TableReturn} {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			before := len(routes)
			err := k.eachRoute(table, family, func() { routes = routes[:before] }, func(n *netlink.Route) {
				if r, ok := observedRoute(n, names); ok {
					routes = append(routes, r)
				}
			})
			if err != nil {
				errs = append(errs, fmt.Errorf("list routes of table %d: %w", table, err))
			}
		}
	}
	return routes, errors.Join(errs...)
}

// eachRoute calls f for our routes of a table and family, one at a time: there
// may be many thousands. It calls again first, each time that it begins, since
// the kernel's answer may change while it is being given.
func (k *Kernel) eachRoute(table, family int, again func(), f func(n *netlink.Route)) error {
	filter := &netlink.Route{Table: table, Protocol: state.Protocol}
	_, err := dump(func() (struct{}, error) {
		again()
		return struct{}{}, k.routes.RouteListFilteredIter(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL,
			func(r netlink.Route) bool { f(&r); return true })
	})
	// A table comes into being with its first route.
	if errors.Is(err, unix.ENOENT) || family == netlink.FAMILY_V6 && noIPv6(err) {
		return nil
	}
	return err
}

func observedRoute(n *netlink.Route, names names) (state.Route, bool) {
	dst, ok := prefix(n.Dst)
	if !ok || n.Tos != 0 {
		return state.Route{}, false
	}
	r := state.Route{
		Table:  n.Table,
		Dst:    dst,
		Type:   state.RouteType(n.Type),
		Source: addr(n.Src),
		MTU:    n.MTU,
		Metric: uint32(n.Priority),
	}
	if n.Type != unix.RTN_UNICAST {
		return r, true // IPv6 hangs the others on lo
	}
	r.Via = addr(n.Gw)
	r.OnLink = n.Flags&int(netlink.FLAG_ONLINK) != 0
	switch {
	case len(n.MultiPath) > 0:
		r.Device = "several" // not one of ours
	case names[n.LinkIndex] == "":
		r.Device = fmt.Sprintf("index %d", n.LinkIndex) // came or went just now
	default:
		r.Device = names[n.LinkIndex]
	}
	return r, true
}

// setRoute adds a route in place of one of the same table, destination and metric.
func setRoute(r state.Route) error {
	n, err := wantedRoute(r)
	if err != nil {
		return err
	}
	if err := netlink.RouteReplace(n); err != nil {
		return routeError(r, err)
	}
	return nil
}

// identity is what tells a route from others.
func identity(r state.Route) (*netlink.Route, error) {
	if !ourTable(uint32(r.Table)) {
		return nil, fmt.Errorf("table %d is not ours", r.Table)
	}
	if r.Type == unix.RTN_UNSPEC {
		return nil, fmt.Errorf("route to %s: it has no type", r.Dst)
	}
	return &netlink.Route{
		Table:    r.Table,
		Dst:      ipNet(r.Dst.Masked()),
		Type:     int(r.Type),
		Protocol: state.Protocol,
		Priority: int(metric(r)),
	}, nil
}

func wantedRoute(r state.Route) (*netlink.Route, error) {
	n, err := identity(r)
	switch {
	case err != nil:
		return n, err
	case r.Type == state.Local && r.Dst.Addr().Is4():
		return nil, fmt.Errorf("route to %s: type local is for IPv6 only", r.Dst)
	case r.Type == state.Local:
		n.LinkIndex = loopbackIndex
		return n, nil
	case r.Type != state.Unicast:
		return n, nil
	}
	link, err := netlink.LinkByName(r.Device)
	if isNotFound(err) {
		return nil, &missingLink{r.Device}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", r.Device, err)
	}
	n.LinkIndex = link.Attrs().Index
	n.MTU = r.MTU
	if r.Source.IsValid() {
		n.Src = r.Source.AsSlice()
	}
	switch {
	case r.Via.IsValid():
		n.Gw = r.Via.AsSlice()
		if r.OnLink {
			n.Flags = int(netlink.FLAG_ONLINK)
		}
	case r.Dst.Addr().Is4():
		n.Scope = netlink.SCOPE_LINK
	}
	return n, nil
}

func metric(r state.Route) uint32 {
	if r.Metric == 0 && r.Dst.Addr().Is6() {
		return defaultMetric6
	}
	return r.Metric
}

// routeError says what the kernel's bare numbers mean here.
func routeError(r state.Route, err error) error {
	switch {
	case errors.Is(err, unix.EINVAL) && r.Source.IsValid() && !isLocal(r.Source):
		return fmt.Errorf("%w: source %s is no address of this node", err, r.Source)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%w: interface %s is down", err, r.Device)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("%w: next hop %s is not reached through interface %s", err, r.Via, r.Device)
	}
	return err
}

// isLocal tells whether an interface of this node has the address.
func isLocal(a netip.Addr) bool {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return true // not known: say nothing
	}
	for i := range addrs {
		if addr(addrs[i].IP) == a {
			return true
		}
	}
	return false
}

// deleteRoute removes this route, and not one of another kind or way that took
// its place.
func (k *Kernel) deleteRoute(r state.Route) error {
	n, err := identity(r)
	if err != nil {
		return err
	}
	if r.Type == state.Unicast {
		link, err := netlink.LinkByName(r.Device)
		if err != nil && !isNotFound(err) {
			return fmt.Errorf("interface %s: %w", r.Device, err)
		}
		// Without its device a route is gone, unless it had several.
		if err == nil {
			n.LinkIndex = link.Attrs().Index
		}
		if r.Via.IsValid() {
			n.Gw = r.Via.AsSlice()
		}
	}
	// What the kernel is told to delete is a pattern.
	switch v4 := r.Dst.Addr().Is4(); {
	case r.Type == state.Unicast:
		// Device and next hop tell it from what else there may be.
	case !v4:
		// The type is not compared; all but unicast hang on loopback.
		n.LinkIndex = loopbackIndex
	case n.Priority == 0:
		// Any metric: were it gone already, the last resort below it, of the
		// same type, would go instead. There are few of these, so looking first
		// costs little.
		there, err := k.hasRoute(n)
		if err != nil || !there {
			return err
		}
	}
	n.Scope = netlink.SCOPE_NOWHERE // any
	err = netlink.RouteDel(n)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || r.Dst.Addr().Is6() && noIPv6(err) {
		return nil
	}
	return err
}

// loopbackIndex is that of lo in every network namespace (LOOPBACK_IFINDEX).
const loopbackIndex = 1

// hasRoute tells whether an IPv4 route of ours other than unicast is there.
func (k *Kernel) hasRoute(n *netlink.Route) (bool, error) {
	there := false
	want, _ := prefix(n.Dst)
	err := k.eachRoute(n.Table, netlink.FAMILY_V4, func() { there = false }, func(is *netlink.Route) {
		if dst, _ := prefix(is.Dst); dst == want && is.Priority == n.Priority && is.Type == n.Type {
			there = true
		}
	})
	if err != nil {
		return false, fmt.Errorf("list routes of table %d: %w", n.Table, err)
	}
	return there, nil
}
