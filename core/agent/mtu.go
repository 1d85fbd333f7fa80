package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

const (
	// wireGuardOverhead is what WireGuard adds to a packet, in bytes: outer
	// IPv6 header 40, UDP 8, WireGuard 32. Over IPv4 20 of these stay unused;
	// a tunnel does not know which family its next packet goes out by.
	wireGuardOverhead = 80
	// minTunnelMTU is the smallest MTU that an automatic choice may give: less
	// than 1280 would switch IPv6 off on the link (RFC 8200, section 5).
	minTunnelMTU = 1280
)

// TunnelMTU returns the MTU in bytes of this node's WireGuard link: what its
// uplinks carry, less WireGuard's own overhead. An uplink is an interface of a
// default route, or the one that holds the node's endpoint, since the default
// route may lead elsewhere; of several the smallest MTU counts. Without either,
// locations are joined by their LAN, and the interface of an internal address
// counts. The error names the interface that is too small.
func TunnelMTU(h model.Host, endpoint netip.Addr, internal []netip.Prefix) (int, error) {
	uplinks := slices.Clone(h.DefaultDevices)
	add := func(a netip.Addr) {
		for i := range h.Interfaces {
			if holds(&h.Interfaces[i], a) {
				uplinks = append(uplinks, h.Interfaces[i].Name)
			}
		}
	}
	if endpoint.IsValid() {
		add(endpoint.Unmap())
	}
	if len(uplinks) == 0 {
		for _, p := range internal {
			add(p.Addr())
		}
	}
	var smallest *model.Interface
	for i := range h.Interfaces {
		l := &h.Interfaces[i]
		if slices.Contains(uplinks, l.Name) && (smallest == nil || l.MTU < smallest.MTU) {
			smallest = l
		}
	}
	if smallest == nil {
		return 0, errors.New("no interface carries the tunnel: there is no default route, and no interface has the node's endpoint or internal address; set --mtu")
	}
	mtu := smallest.MTU - wireGuardOverhead
	if mtu < minTunnelMTU {
		return 0, fmt.Errorf("interface %s has an MTU of %d bytes, which leaves %d inside WireGuard where %d are needed: raise it, or set --mtu for an IPv4-only mesh",
			smallest.Name, smallest.MTU, max(mtu, 0), minTunnelMTU)
	}
	return mtu, nil
}

func holds(l *model.Interface, a netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr().Unmap() == a })
}
