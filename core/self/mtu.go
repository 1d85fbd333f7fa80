package self

import (
	"fmt"

	"github.com/kilo-overlay/kilo/core/model"
)

const (
	// TunnelOverhead is what WireGuard adds to a packet in bytes over IPv6, the
	// larger of the two families: 40 (IPv6) + 8 (UDP) + 32 (WireGuard).
	TunnelOverhead = 80
	// MinUnderlayMTU leaves a tunnel of 1280 bytes, the least that IPv6 allows
	// (RFC 8200, section 5).
	MinUnderlayMTU = 1280 + TunnelOverhead
	defaultMTU     = 1500
)

// TunnelMTU returns the MTU in bytes for the WireGuard link: that of the
// interfaces that can carry the tunnel, the smallest of them, less
// TunnelOverhead. Those are the devices of default routes and the one that has
// the endpoint's address.
//
// An underlay below MinUnderlayMTU still gives an MTU as long as IPv4 works
// with it (576 bytes); below that it is an error that names the interface.
func TunnelMTU(h model.Host, endpoint model.Endpoint) (int, error) {
	smallest, name := 0, ""
	for i := range h.Interfaces {
		n := &h.Interfaces[i]
		if !carries(&h, n, endpoint) {
			continue
		}
		if smallest == 0 || n.MTU < smallest {
			smallest, name = n.MTU, n.Name
		}
	}
	if smallest == 0 {
		// No default route (yet): the usual Ethernet.
		smallest, name = defaultMTU, "no interface with a default route"
	}
	if mtu := smallest - TunnelOverhead; mtu >= 576 {
		return mtu, nil
	}
	return 0, fmt.Errorf("interface %s has an MTU of %d bytes, too small for a tunnel: WireGuard needs %d of them for itself; raise it, or choose --mtu", name, smallest, TunnelOverhead)
}

func carries(h *model.Host, n *model.Interface, endpoint model.Endpoint) bool {
	for _, d := range h.DefaultDevices {
		if d == n.Name {
			return true
		}
	}
	for _, p := range n.Addresses {
		if endpoint.Addr.IsValid() && p.Addr().Unmap() == endpoint.Addr.Unmap() {
			return true
		}
	}
	return false
}
