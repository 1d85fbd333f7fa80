package kerneltest

import (
	"net/netip"

	"github.com/kilo-overlay/kilo/core/state"
)

// Vocabulary is a table with every Match and Action that state has, in all
// their forms, where nftables admits them; it makes no sense beyond that.
func Vocabulary(iface string) state.Filter {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	rule := func(comment string, a state.Action, m ...state.Match) state.FilterRule {
		return state.FilterRule{Comment: comment, Action: a, Matches: m}
	}
	in := func(set string, v6, source, not bool) state.Match {
		return state.AddrInSet{Set: set, V6: v6, Source: source, Not: not}
	}
	is := func(prefix string, source, not bool) state.Match {
		return state.AddrIs{Prefix: netip.MustParsePrefix(prefix), Source: source, Not: not}
	}
	tcp := state.L4Proto{Proto: "tcp"}
	return state.Filter{
		Sets: []state.Set{
			{Name: "all6", V6: true, Elements: prefixes("::/0")},
			{Name: "none4"},
			{Name: "remote4", Elements: prefixes(
				"0.0.0.0/8", "10.4.0.2/32", "10.244.8.0/24", "10.244.9.0/25", "10.244.9.128/25", "192.168.9.9/32", "255.255.255.255/32")},
			{Name: "remote6", V6: true, Elements: prefixes("fd00:9::/64", "fd00:9:0:1::/64", "fd00:99::9/128", "ff00::/8")},
		},
		Chains: []state.Chain{
			{Name: "clamp", Type: state.FilterChain, Hook: "forward", Priority: -150, Rules: []state.FilterRule{
				rule("", state.ClampMSS{}, in("remote4", false, false, false), state.TCPSyn{}),
				rule("", state.ClampMSS{}, state.TCPSyn{}, state.OutInterface{Name: iface}),
			}},
			{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300, Rules: []state.FilterRule{
				rule("WireGuard's own packets", state.Accept{}, state.MarkIs{Mark: state.Mark}),
				rule("", state.Accept{}, state.OutInterface{Name: "lan0"}, state.NextHop{Addr: netip.MustParseAddr("10.0.0.9")}),
				rule("", state.Accept{}, state.NextHop{Not: true, Addr: netip.MustParseAddr("fd00:10::9")}, state.MarkIs{Not: true, Mark: 0}),
				rule("the API server (6443); it's {let} out", state.Accept{}, is("10.0.0.7/32", false, false), state.Port{Proto: "tcp", Port: 6443}),
				rule("", state.Return{}, is("10.0.0.7/32", true, false), state.Port{Proto: "tcp", Source: true, Port: 6443}),
				rule("", state.Drop{}, in("remote4", false, false, false)),
				rule("", state.Drop{}, in("remote6", true, false, false)),
			}},
			{Name: "input", Type: state.FilterChain, Hook: "input", Priority: 10, Rules: []state.FilterRule{
				rule("", state.Accept{}, state.InInterface{Name: "lo"}),
				rule("", state.Accept{}, state.InInterface{Name: iface, Not: true}, state.L4Proto{Proto: "icmp"}),
				rule("", state.Accept{}, state.L4Proto{Proto: "ipv6-icmp"}),
				rule("", state.Accept{}, state.L4Proto{Proto: "udp"}, is("10.0.0.0/8", true, false)),
				rule("", state.Accept{}, state.Port{Proto: "udp", Port: 51820}),
				rule("", state.Accept{}, state.CtState{States: []string{"established", "related"}}),
				rule("", state.Drop{}, state.CtState{States: []string{"invalid"}}),
				rule("", state.Return{}, state.CtState{States: []string{"new", "untracked"}}, state.CtStatus{Flag: "dnat"}),
				rule("", state.Accept{}, state.SourceLocal{}),
				rule("", state.Return{}, state.SourceLocal{Not: true}, is("fd00::/8", true, true)),
			}},
			{Name: "source", Type: state.NATChain, Hook: "postrouting", Priority: 99, Rules: []state.FilterRule{
				rule("the true source", state.KeepSource{}, in("remote4", false, false, false), is("10.244.0.0/16", true, false)),
				rule("", state.KeepSource{V6: true}, in("remote6", true, true, false)),
				rule("", state.SourceNAT{To: netip.MustParseAddr("10.0.0.1")}, in("remote4", false, false, false)),
				rule("", state.SourceNAT{To: netip.MustParseAddr("fd00:10::1")}, in("remote6", true, false, true)),
				rule("", state.Masquerade{}, state.InInterface{Name: iface}, state.OutInterface{Name: "lan0", Not: true}),
			}},
			{Name: "stray", Type: state.FilterChain, Hook: "output", Priority: -1, Rules: []state.FilterRule{
				rule("begun outside the tunnel", state.ResetTCP{},
					in("remote4", false, false, false), in("none4", false, true, true),
					state.CtState{States: []string{"established"}}, state.CtOriginal{}, state.CtStatus{Not: true, Flag: "snat"}, tcp),
				rule("", state.ResetTCP{}, state.Port{Proto: "tcp", Port: 7}, state.OutInterface{Name: iface}),
			}},
			{Name: "tag", Type: state.FilterChain, Hook: "forward", Priority: -400, Rules: []state.FilterRule{
				rule("the mesh's", state.AddMark{Bits: state.MarkForwarded}, in("remote4", false, true, false)),
				rule("", state.AddMark{Bits: 0x80000001}, in("remote6", true, false, false)),
				rule("", state.TakeMark{Bits: state.MarkForwarded}, state.MarkIs{Mark: 0x11}),
				rule("", state.TakeMark{Bits: 0x80000001}),
			}},
			{Name: "transit", Type: state.FilterChain, Hook: "prerouting", Priority: -190, Rules: []state.FilterRule{
				rule("seen one way", state.NoTrack{}, state.CtState{States: []string{"invalid"}}, in("remote4", false, true, false)),
				rule("", state.NoTrack{}),
			}},
		},
	}
}
