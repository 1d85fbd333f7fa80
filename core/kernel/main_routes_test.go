package kernel_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/kernel"
)

// Every kind of route that may stand in main, and what of it is a next hop.
func TestMainRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, `
ip link add eth0 type veth peer name lan0
ip link set eth0 mtu 1400
ip addr add 10.0.0.2/24 dev eth0
ip addr add fd00:a::2/64 dev eth0 nodad
ip link set eth0 addrgenmode none
ip link set lan0 addrgenmode none
ip link set eth0 up
ip link set lan0 up
ip link add flannel.1 type vxlan id 1 dev eth0 local 10.0.0.2 dstport 8472 nolearning
ip link set flannel.1 addrgenmode none
ip link set flannel.1 mtu 1350 up
ip route add default via 10.0.0.254
ip route add 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink
ip route add 10.244.2.0/24 via 10.0.0.9 metric 20
ip route add 10.244.2.0/24 via 10.0.0.8 metric 10 mtu 1300
ip route add 10.244.3.0/24 nexthop via 10.0.0.8 nexthop via 10.0.0.9  # not one next hop
ip route add blackhole 10.244.4.0/24                                  # leads nowhere
ip route add 10.244.5.0/24 via 10.0.0.8 table 1107                    # not main
ip -6 route add fd00:10:1::/64 via fd00:a::1
ip -6 route add fd00:10:2::/64 via fd00:10:2:: dev flannel.1 onlink`)
		k, err := kernel.New(kernel.Options{Interface: "kilo0"})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		got, err := k.MainRoutes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hop := func(prefix, via, device string, onLink bool, mtu int) adapter.NextHop {
			h := adapter.NextHop{Prefix: netip.MustParsePrefix(prefix), Device: device, OnLink: onLink, MTU: mtu}
			if via != "" {
				h.Via = netip.MustParseAddr(via)
			}
			return h
		}
		want := []adapter.NextHop{
			hop("0.0.0.0/0", "10.0.0.254", "eth0", false, 1400),
			hop("10.0.0.0/24", "", "eth0", false, 1400),
			hop("10.244.1.0/24", "10.244.1.0", "flannel.1", true, 1350),
			hop("10.244.2.0/24", "10.0.0.8", "eth0", false, 1300),
			hop("10.244.2.0/24", "10.0.0.9", "eth0", false, 1400),
			hop("fd00:a::/64", "", "eth0", false, 1400),
			hop("fd00:10:1::/64", "fd00:a::1", "eth0", false, 1400),
			hop("fd00:10:2::/64", "fd00:10:2::", "flannel.1", true, 1350),
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
	}, "ip")
}
