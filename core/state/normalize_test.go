package state_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestNormalizeMasksSortsAndMerges(t *testing.T) {
	given := state.State{
		Links: []state.Link{
			{Name: "kilo0", Kind: state.WireGuard, MTU: 1420,
				// An address keeps the bits beyond its length.
				Addresses: prefixes("10.4.0.9/16", "10.4.0.1/16", "10.4.0.9/16"),
				Tunnel: &state.Tunnel{Peers: []state.Peer{
					{Key: model.Key{2}, AllowedIPs: prefixes("10.244.9.7/24", "10.244.8.0/24", "10.244.9.0/24")},
					{Key: model.Key{1}, Keepalive: 10*time.Second + 500*time.Millisecond,
						Endpoint: netip.MustParseAddrPort("[::ffff:203.0.113.9]:51820")},
				}}},
			{Name: "kilo-vxlan", Kind: state.VXLAN, VXLAN: &state.VXLANConfig{Remotes: []state.VXLANRemote{
				{Inner: netip.MustParseAddr("10.4.0.9"), MAC: "02:00:00:00:00:0A"},
				{Inner: netip.MustParseAddr("10.4.0.2"), MAC: "02:00:00:00:00:09"},
			}}},
		},
		Routes: []state.Route{
			{Table: 1108, Dst: netip.MustParsePrefix("10.0.0.2/32"), Type: state.Unicast, Device: "flannel.1"},
			{Table: 1107, Dst: netip.MustParsePrefix("10.244.9.7/24"), Type: state.Unreachable, Metric: state.MetricLast},
			{Table: 1107, Dst: netip.MustParsePrefix("fd00:9::/64"), Type: state.Unicast, Device: "kilo0"},
			{Table: 1107, Dst: netip.MustParsePrefix("10.244.9.0/24"), Type: state.Unicast, Device: "kilo0"},
			{Table: 1107, Dst: netip.MustParsePrefix("10.244.9.0/24"), Type: state.Unicast, Device: "kilo0"},
			{Table: 1107, Dst: netip.MustParsePrefix("10.244.0.0/16"), Type: state.Throw},
		},
		Rules: []state.Rule{
			{Priority: 107, Invert: true, Mark: 0x1000, Table: 1107},
			{Priority: 105, V6: true, Proto: "udp", SrcPort: 51820, Table: 254},
			{Priority: 105, Proto: "udp", SrcPort: 51820, Table: 254},
			{Priority: 107, Invert: true, Mark: 0x1000, Table: 1107},
		},
		Filter: state.Filter{
			Sets: []state.Set{{Name: "remote4", Elements: prefixes(
				"10.244.9.0/24", "10.0.0.0/8", "192.168.9.9/32", "10.244.9.7/24", "192.168.9.9/32", "10.255.0.0/16", "11.0.0.0/24", "11.0.1.0/24")}},
			Chains: []state.Chain{
				{Name: "source", Type: state.NATChain, Hook: "postrouting", Priority: 99},
				{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300, Rules: []state.FilterRule{
					{Matches: []state.Match{state.CtState{States: []string{"new", "established"}}}, Action: state.Drop{}},
					{Matches: []state.Match{state.AddrIs{Prefix: netip.MustParsePrefix("10.0.0.7/24")}}, Action: state.Accept{}},
				}},
			},
		},
	}
	before := given.Filter.String() + given.Routes[0].String() + given.Links[0].Tunnel.Peers[0].String()

	const want = `link kilo-vxlan vxlan mtu 0
  vxlan id 0 port 0 dev 
  remote 10.4.0.2 lladdr 02:00:00:00:00:09 dst invalid IP
  remote 10.4.0.9 lladdr 02:00:00:00:00:0a dst invalid IP
link kilo0 wireguard mtu 1420 addr 10.4.0.1/16 addr 10.4.0.9/16
  tunnel key AAAA…AAA= port 0
  peer AQAA…AAA= endpoint 203.0.113.9:51820 keepalive 10s
  peer AgAA…AAA= allowed 10.244.8.0/24 10.244.9.0/24
route table 1107 throw 10.244.0.0/16
route table 1107 10.244.9.0/24 dev kilo0
route table 1107 unreachable 10.244.9.0/24 metric 4294967295
route table 1107 fd00:9::/64 dev kilo0 metric 1024
route table 1108 10.0.0.2/32 dev flannel.1
rule 105 inet ipproto udp sport 51820 lookup main
rule 105 inet6 ipproto udp sport 51820 lookup main
rule 107 inet not fwmark 0x1000 lookup 1107
table inet kilo {
	set remote4 {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.0/8,
			     11.0.0.0/24,
			     11.0.1.0/24,
			     192.168.9.9 }
	}

	chain guard {
		type filter hook postrouting priority 300; policy accept;
		ct state established,new drop
		ip daddr 10.0.0.0/24 accept
	}

	chain source {
		type nat hook postrouting priority srcnat - 1; policy accept;
	}
}
`
	s := given
	s.Normalize()
	if got := s.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	// String normalizes too, but leaves its argument alone, and so does Normalize.
	if got := given.String(); got != want {
		t.Errorf("not normalized before, it prints:\n%s", got)
	}
	if after := given.Filter.String() + given.Routes[0].String() + given.Links[0].Tunnel.Peers[0].String(); after != before {
		t.Errorf("what s shared with another State was changed:\n%s\nwas:\n%s", after, before)
	}
	// Normal already, it is handed on.
	again := s
	again.Normalize()
	if &again.Routes[0] != &s.Routes[0] || &again.Filter.Sets[0].Elements[0] != &s.Filter.Sets[0].Elements[0] {
		t.Error("what is normal was copied")
	}
	if !slices.Equal(again.Routes, s.Routes) {
		t.Error("normalizing again changes routes")
	}
}
