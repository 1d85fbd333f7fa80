package flannel

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestSubnetEnv(t *testing.T) {
	for _, c := range []struct {
		name, text string
		networks   []netip.Prefix
		subnets    []netip.Prefix
		mtu        int
	}{
		{
			name:     "as flanneld writes it: the subnet is the bridge's address",
			text:     "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
			networks: prefixes("10.244.0.0/16"),
			subnets:  prefixes("10.244.2.0/24"),
			mtu:      1450,
		},
		{
			name: "both families",
			text: "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\n" +
				"FLANNEL_IPV6_NETWORK=fd00:10:42::/56\nFLANNEL_IPV6_SUBNET=fd00:10:42::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n",
			networks: prefixes("10.42.0.0/16", "fd00:10:42::/56"),
			subnets:  prefixes("10.42.0.0/24", "fd00:10:42::/64"),
			mtu:      1430,
		},
		{
			name:     "IPv6 only",
			text:     "FLANNEL_IPV6_NETWORK=fd00:10:42::/56\nFLANNEL_IPV6_SUBNET=fd00:10:42:7::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n",
			networks: prefixes("fd00:10:42::/56"),
			subnets:  prefixes("fd00:10:42:7::/64"),
			mtu:      1430,
		},
		{
			name:     "several prefixes, quotes, comment, no end of line",
			text:     "# made by hand\nexport FLANNEL_NETWORK=\"10.244.0.0/16,10.245.0.0/16\"\n\nFLANNEL_SUBNET='10.244.1.1/24, 10.245.1.1/24'",
			networks: prefixes("10.244.0.0/16", "10.245.0.0/16"),
			subnets:  prefixes("10.244.1.0/24", "10.245.1.0/24"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := parseSubnetEnv(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(subnetEnv{c.networks, c.subnets, c.mtu}, e, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Each error names the line, the key or the value that is wrong.
func TestSubnetEnvRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an empty file", "", "FLANNEL_SUBNET"},
		{"no subnet", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_MTU=1450\n", "FLANNEL_SUBNET"},
		{"no equals sign", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET\n", "line 2"},
		{"no prefix length", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1\n", "FLANNEL_SUBNET=10.244.2.1"},
		{"IPv6 under IPv4's key", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=fd00::1/64\n", "fd00::1/64 is of the wrong address family"},
		{"subnet elsewhere", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.245.2.1/24\n", "10.245.2.0/24 lies in no network"},
		{"no network of its family", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\nFLANNEL_IPV6_SUBNET=fd00::1/64\n", "fd00::/64 lies in no network"},
		{"MTU of 12", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\nFLANNEL_MTU=12\n", "FLANNEL_MTU=12"},
		{"MTU in letters", "FLANNEL_MTU=big\n", "FLANNEL_MTU=big"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseSubnetEnv(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

func FuzzSubnetEnv(f *testing.F) {
	f.Add("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	f.Add("FLANNEL_IPV6_NETWORK=fd00:10:42::/56\nFLANNEL_IPV6_SUBNET=fd00:10:42:7::1/64\nFLANNEL_MTU=1430\n")
	f.Add("export FLANNEL_SUBNET=\"10.244.2.1/24,\"\n#\n=\nFLANNEL_MTU=99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseSubnetEnv(text)
		if err != nil {
			return
		}
		if len(e.Subnets) == 0 {
			t.Error("accepted a file without a subnet")
		}
		for _, p := range slices.Concat(e.Networks, e.Subnets) {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("prefix %v is invalid or has host bits", p)
			}
		}
		if e.MTU != 0 && (e.MTU < 68 || e.MTU > 65536) {
			t.Errorf("accepted MTU %d", e.MTU)
		}
	})
}
