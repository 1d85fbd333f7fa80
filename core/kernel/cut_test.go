package kernel

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
)

// Connections from and to a Peer end, a translated one too; others go on.
func TestCut(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, `ip link set lo up
			for a in 10.5.0.1 10.5.0.2 10.6.0.1; do ip addr add $a/32 dev lo; done
			ip -6 addr add fd00:5::1/128 dev lo nodad
			nft add table inet t
			nft add chain inet t track '{ type filter hook output priority 0; ct state new accept; }'
			nft add chain inet t nat '{ type nat hook output priority -100; ip daddr 10.96.0.9 dnat ip to 10.5.0.1; }'
			ip route add 10.96.0.9/32 dev lo
			ping -qc1 -I 10.6.0.1 10.5.0.1
			ping -qc1 -I 10.5.0.1 10.6.0.1
			ping -qc1 -I 10.6.0.1 10.96.0.9
			ping -qc1 -I 10.6.0.1 10.5.0.2
			ping -qc1 fd00:5::1`)
		var k Kernel
		n, err := k.Cut(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.5.0.1/32"), netip.MustParsePrefix("fd00:5::/64")})
		if err != nil || n != 4 {
			t.Errorf("cut %d, %v; want 4", n, err)
		}
		left := nstest.Sh(t, "conntrack -L -f ipv4; conntrack -L -f ipv6")
		if strings.Contains(left, "10.5.0.1") || strings.Contains(left, "fd00:5") || !strings.Contains(left, "10.5.0.2") {
			t.Errorf("left:\n%s", left)
		}
	}, append(tools, "conntrack")...)
}
