package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/state"
)

// MainRoutes lists the unicast routes of the table main, both families, sorted
// by prefix; of several to one prefix, the one that the kernel prefers comes
// first. Routes over several next hops at once are left out. It changes nothing.
func (k *Kernel) MainRoutes(context.Context) ([]adapter.NextHop, error) {
	type metered struct {
		adapter.NextHop
		metric int
	}
	var found []metered
	devices := map[int]netlink.Link{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := k.dumpMain(family)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.LinkIndex == 0 {
				continue // several next hops
			}
			link, seen := devices[r.LinkIndex]
			if !seen {
				link, err = netlink.LinkByIndex(r.LinkIndex)
				if isNotFound(err) || errors.Is(err, unix.ENODEV) {
					link, err = nil, nil // gone since, and its routes with it
				}
				if err != nil {
					return nil, fmt.Errorf("look up interface %d: %w", r.LinkIndex, err)
				}
				devices[r.LinkIndex] = link
			}
			if link == nil {
				continue
			}
			found = append(found, metered{nextHop(r, family, link.Attrs()), r.Priority})
		}
	}
	slices.SortStableFunc(found, func(a, b metered) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.metric, b.metric))
	})
	hops := make([]adapter.NextHop, len(found))
	for i, f := range found {
		hops[i] = f.NextHop
	}
	return hops, nil
}

// dumpMain lists main's unicast routes of one family; none where this kernel
// runs without IPv6.
func (k *Kernel) dumpMain(family int) ([]netlink.Route, error) {
	routes, err := dump(func() ([]netlink.Route, error) {
		return k.routes.RouteListFiltered(family, &netlink.Route{Table: state.TableMain}, netlink.RT_FILTER_TABLE)
	})
	if family == netlink.FAMILY_V6 && noIPv6(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the routes of main: %w", err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Type != unix.RTN_UNICAST }), nil
}

func nextHop(r netlink.Route, family int, device *netlink.LinkAttrs) adapter.NextHop {
	h := adapter.NextHop{Device: device.Name, OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0, MTU: cmp.Or(r.MTU, device.MTU)}
	if via, ok := netip.AddrFromSlice(r.Gw); ok {
		h.Via = via.Unmap()
	}
	everything := netip.IPv4Unspecified()
	if family == netlink.FAMILY_V6 {
		everything = netip.IPv6Unspecified()
	}
	h.Prefix = netip.PrefixFrom(everything, 0)
	if r.Dst != nil {
		if dst, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			h.Prefix = netip.PrefixFrom(dst.Unmap(), bits)
		}
	}
	return h
}
