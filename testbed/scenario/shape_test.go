package scenario

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A lab is a value: one that differs from the default wherever it can comes up
// too, and is what it says.
func TestUnusualLab(t *testing.T) {
	spec := lab.Spec{
		NoAgent:        true,
		RoutedInternet: true,
		MTU:            1400,
		RPFilter:       lab.RPFilterLoose,
		ProxyMode:      lab.ProxyNFTables,
		Flannel:        lab.Flannel{VNI: 42, DirectRouting: true, NFTables: true},
		Locations: []lab.Location{
			{Name: "hub", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.1.1.0/24")}, Nodes: []lab.Node{
				{Name: "h1", Public: true, ControlPlane: true, Pods: 2},
				{Name: "h2", Subnet: 1, Pods: 1},
				{Name: "h3", Pods: 1},
			}},
			{Name: "cloud", Nodes: []lab.Node{{Name: "v1", Pods: 1}}}, // a public address and nothing else
			{Name: "home", Subnets: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}, Nodes: []lab.Node{
				{Name: "laptop", Outsider: true},
			}},
		},
	}
	l := up(t, spec)
	h1, h2, v1, laptop := l.Machine("h1"), l.Machine("h2"), l.Machine("v1"), l.Machine("laptop")

	onlyLocationsAreWhole(t, l, 5*4)
	if got := must(h2.Shell(t.Context(), "ip route"))(t); !strings.Contains(got, "via "+pod(l, "h1").Masked().Addr().String()+" dev flannel.42") {
		t.Errorf("h2 is in another subnet than h1 and must reach its pods by VXLAN:\n%s", got)
	}
	if got := must(l.Machine("h3").Shell(t.Context(), "ip route"))(t); !strings.Contains(got, "via 10.1.0.1 dev eth0") {
		t.Errorf("h3 is on h1's segment and must reach its pods directly:\n%s", got)
	}
	ok(t, v1.Ping(t.Context(), h1.Public))
	ok(t, laptop.Ping(t.Context(), v1.Public))
	if err := v1.Ping(t.Context(), h1.Addr); err == nil {
		t.Errorf("v1 reaches %s, a private address of another location", h1.Addr)
	}
	if got := must(v1.Shell(t.Context(), "cat /sys/class/net/eth0/mtu; sysctl -n net.ipv4.conf.eth0.rp_filter; nft list tables"))(t); !strings.HasPrefix(got, "1400\n2\n") || !strings.Contains(got, "table ip kube-proxy") || !strings.Contains(got, "flannel") {
		t.Errorf("v1: MTU, rp_filter, nftables: %q", got)
	}
	if got := must(l.Kubectl(t.Context(), "get", "nodes", "--output=name"))(t); strings.Contains(got, "laptop") {
		t.Errorf("an outsider is a node:\n%s", got)
	}
}

// pod is the prefix of a node's pods.
func pod(l *lab.Lab, node string) netip.Prefix {
	return netip.PrefixFrom(l.Pod(node).Addr, 24)
}
