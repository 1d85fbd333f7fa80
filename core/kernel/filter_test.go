package kernel

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/state"
)

// What is compiled is read back as it was: each rule of the vocabulary, and
// rules in which a protocol stands for itself beside a port that implies one.
func TestDecompile(t *testing.T) {
	tcp, udp := state.L4Proto{Proto: "tcp"}, state.L4Proto{Proto: "udp"}
	port := state.Port{Proto: "tcp", Port: 80}
	rules := []state.FilterRule{
		{Matches: []state.Match{tcp, port}, Action: state.ResetTCP{}},
		{Matches: []state.Match{port, tcp}, Action: state.ResetTCP{}},
		{Matches: []state.Match{port, state.TCPSyn{}, udp}, Action: state.Drop{}},
		{Matches: []state.Match{tcp, state.InInterface{Name: "eth0"}, port}, Action: state.Drop{}},
		{Matches: []state.Match{state.AddrIs{Prefix: netip.MustParsePrefix("10.32.0.0/11")}}, Action: state.Drop{}},
		{Matches: []state.Match{state.AddrIs{Prefix: netip.MustParsePrefix("fc00::/7"), Source: true, Not: true}}, Action: state.Drop{}},
		{Action: state.Return{}},
	}
	for _, c := range kerneltest.Vocabulary("kilo0").Chains {
		rules = append(rules, c.Rules...)
	}
	for _, r := range rules {
		r.Comment = "" // travels elsewhere
		exprs, err := compile(r)
		if err != nil {
			t.Error(err)
			continue
		}
		raw, err := marshal(exprs)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, ok := decompile(raw); !ok || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: read back as %v %s", r, ok, got)
		}
		// Another register, another comparison: not of our words.
		if len(r.Matches) > 0 {
			raw[len(raw)-1].attrs["99"] = "x"
			if got, ok := decompile(raw); ok {
				t.Errorf("%s with something unknown in it: read back as %s", r, got)
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	v4 := state.AddrIs{Prefix: netip.MustParsePrefix("10.0.0.0/8")}
	v6 := state.AddrIs{Prefix: netip.MustParsePrefix("fd00::/8")}
	for _, r := range []state.FilterRule{
		{Matches: []state.Match{v4, v6}, Action: state.Drop{}},
		{Matches: []state.Match{state.AddrIs{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}, Action: state.Drop{}},
		{Matches: []state.Match{state.Port{Proto: "tcp"}, state.Port{Proto: "udp"}}, Action: state.Drop{}},
		{Matches: []state.Match{state.Port{Proto: "sctp"}}, Action: state.Drop{}},
		{Matches: []state.Match{state.L4Proto{Proto: "sctp"}}, Action: state.Drop{}},
		{Matches: []state.Match{state.CtState{States: []string{"old"}}}, Action: state.Drop{}},
		{Matches: []state.Match{state.CtStatus{Flag: "seen"}}, Action: state.Drop{}},
		{Matches: []state.Match{state.Unknown{Text: "x"}}, Action: state.Drop{}},
		{Action: state.Unknown{Text: "x"}},
		{},
	} {
		if exprs, err := compile(r); err == nil {
			t.Errorf("%v compiled to %d expressions", r, len(exprs))
		}
	}
}

func TestIntervals(t *testing.T) {
	for _, list := range []string{
		"", "0.0.0.0/0", "0.0.0.0/1 128.0.0.0/1", "255.255.255.255/32", "0.0.0.0/32 255.255.255.0/24",
		"10.0.0.0/24 10.0.1.0/24 10.0.2.0/23 192.168.9.9/32", "::/0", "::1/128 fd00::/8 ff00::/8",
		"fd00:9::/64 fd00:9:0:1::/64",
	} {
		s := state.Set{Name: "s", V6: strings.Contains(list, ":")}
		for _, p := range strings.Fields(list) {
			s.Elements = append(s.Elements, netip.MustParsePrefix(p))
		}
		ends, err := intervals(s)
		if err != nil {
			t.Errorf("%s: %v", list, err)
			continue
		}
		if got, ok := prefixes(ends); !ok || !reflect.DeepEqual(got, s.Elements) {
			t.Errorf("%s: read back as %v %v", list, ok, got)
		}
	}
	for _, bad := range [][]element{
		{{key: []byte{10, 0, 0, 0}}, {key: []byte{10, 0, 0, 3}, end: true}},
		{{key: []byte{10, 0, 0, 1}}, {key: []byte{10, 0, 0, 3}, end: true}},
		{{key: []byte{10, 0, 0, 0}}, {key: []byte{10, 0, 1, 0}}},
		{{key: []byte{10, 0, 0, 0}}},
	} {
		if got, ok := prefixes(bad); ok {
			t.Errorf("%v taken for %v", bad, got)
		}
	}
}

func observedFilter(t *testing.T) state.Filter {
	t.Helper()
	f, err := observeFilter()
	if err != nil {
		t.Fatal(err)
	}
	s := state.State{Filter: f}
	s.Normalize()
	return s.Filter
}

// A set of thousands of prefixes does not fit one message.
func TestLargeSets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var f state.Filter
		v4, v6 := state.Set{Name: "large4"}, state.Set{Name: "large6", V6: true}
		for i := range 5000 {
			v4.Elements = append(v4.Elements, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24+i%9))
			v6.Elements = append(v6.Elements, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, byte(i >> 8), byte(i)}), 48+i%80))
		}
		f.Sets = []state.Set{v4, v6}
		f.Chains = []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300, Rules: []state.FilterRule{
			{Matches: []state.Match{state.AddrInSet{Set: "large4"}}, Action: state.Drop{}},
			{Matches: []state.Match{state.AddrInSet{Set: "large6", V6: true}}, Action: state.Drop{}},
		}}}
		for range 2 { // made, replaced
			start := time.Now()
			if err := setFilter(f); err != nil {
				t.Fatal(err)
			}
			t.Logf("set in %s", time.Since(start))
		}
		start := time.Now()
		got := observedFilter(t)
		t.Logf("observed in %s", time.Since(start))
		if got.String() != f.String() {
			t.Error("what was observed is not what was set")
		}
		if text := nstest.Sh(t, "nft list set inet kilo large4"); !strings.Contains(text, "10.19.135.0/") {
			t.Errorf("the last element is missing:\n%s", text)
		}
	}, tools...)
}

// A Peer with a default route makes a set of everything, which has no end.
func TestSetOfEverything(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := state.Filter{
			Sets: []state.Set{
				{Name: "all4", Elements: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
				{Name: "all6", V6: true, Elements: []netip.Prefix{netip.MustParsePrefix("::/0")}},
			},
			Chains: []state.Chain{{Name: "limits", Type: state.FilterChain, Hook: "prerouting", Priority: -150, Rules: []state.FilterRule{
				{Matches: []state.Match{state.AddrInSet{Set: "all4"}, state.CtOriginal{}}, Action: state.Drop{}},
				{Matches: []state.Match{state.AddrInSet{Set: "all6", V6: true}}, Action: state.Drop{}},
			}}},
		}
		if err := setFilter(f); err != nil {
			t.Fatal(err)
		}
		if got := observedFilter(t); got.String() != f.String() {
			t.Errorf("observed:\n%s\nwant:\n%s", got, f)
		}
		nstest.Sh(t, "ip link set lo up; ping -c1 -W1 127.0.0.1 && exit 1; nft list set inet kilo all4")
	}, tools...)
}

// Whatever somebody does to our table is a difference, and setting it again
// mends it.
func TestForeignEdits(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		wanted := state.State{Filter: kerneltest.Vocabulary("kilo0")}
		wanted.Normalize()
		text := wanted.Filter.String()
		for _, edit := range []string{
			"nft flush table inet kilo",
			"nft delete table inet kilo",
			"nft add rule inet kilo guard counter accept",
			"nft insert rule inet kilo guard accept",
			"nft add rule inet kilo guard meta iifgroup 7 drop",
			"nft add rule inet kilo guard ip daddr 10.0.0.0-10.0.0.9 drop",
			"nft add rule inet kilo guard limit rate 5/second accept",
			"nft add rule inet kilo guard ip daddr @remote4 log drop",
			"nft add rule inet kilo guard meta mark and 0xff == 1 drop",
			"nft add rule inet kilo tag meta mark set 0x10",
			"nft add rule inet kilo tag meta mark set meta mark xor 0x10",
			"nft add rule inet kilo tag meta mark set ct mark",
			"nft add rule inet kilo tag ct mark set meta mark",
			"nft add rule inet kilo guard jump guard2 2>/dev/null || nft add chain inet kilo guard2",
			"nft add rule inet kilo source snat ip to 10.0.0.1-10.0.0.9",
			"nft add rule inet kilo source masquerade random",
			"nft add rule inet kilo input ct status seen-reply accept",
			"nft add rule inet kilo input tcp dport 80-90 accept",
			"nft add rule inet kilo input rt classid 7 accept",
			"nft add rule inet kilo input socket transparent 1 accept",
			"nft chain inet kilo guard '{ policy drop; }'",
			"nft add set inet kilo more '{ type inet_service; }'",
			"nft add map inet kilo more '{ type ipv4_addr : ipv4_addr; }'",
			"nft add set inet kilo more '{ type ipv4_addr; flags timeout; }'",
			"nft add element inet kilo remote4 '{ 10.9.0.0/16 }'",
			"nft add element inet kilo remote4 '{ 10.9.0.1-10.9.0.5 }'",
			"nft delete element inet kilo remote4 '{ 10.244.8.0/24 }'",
			"nft flush set inet kilo remote4",
			"nft add table inet kilo '{ flags dormant; }'",
			"nft replace rule inet kilo guard handle $(nft -a list chain inet kilo guard | sed -n 's/.*mark 0x00001000 accept.*handle //p') meta mark 0x1001 accept comment '\"WireGuard'\"'\"'s own packets\"'",
		} {
			if err := setFilter(wanted.Filter); err != nil {
				t.Fatal(err)
			}
			if got := observedFilter(t).String(); got != text {
				t.Fatalf("not mended after an edit; observed:\n%s", got)
			}
			nstest.Sh(t, edit)
			if got := observedFilter(t); got.String() == text {
				t.Errorf("%s: not seen", edit)
			} else if state.Diff(state.State{Filter: got}, wanted) == nil {
				t.Errorf("%s: seen, yet no difference", edit)
			}
		}
		// Of a table with nothing in it, too, nothing remains.
		nstest.Sh(t, "nft delete table inet kilo; nft add table inet kilo")
		if len(state.Diff(state.State{Filter: observedFilter(t)}, state.State{})) == 0 {
			t.Error("an empty table of ours would stay for ever")
		}
		if err := setFilter(state.Filter{}); err != nil {
			t.Fatal(err)
		}
		if text := nstest.Sh(t, "nft list ruleset"); text != "" {
			t.Errorf("left behind:\n%s", text)
		}
	}, tools...)
}

// Other tables, whatever their name and family, are none of our business.
func TestForeignTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, `
			nft add table ip kilo
			nft add chain ip kilo c
			nft add rule ip kilo c counter drop
			nft add table inet kilo2
			nft add chain inet kilo2 guard '{ type filter hook forward priority 0; policy drop; }'
			nft add set inet kilo2 s '{ type ipv4_addr; }'`)
		before := nstest.Sh(t, "nft list ruleset")
		if f := observedFilter(t); !f.IsEmpty() {
			t.Errorf("observed:\n%s", f)
		}
		f := kerneltest.Vocabulary("kilo0")
		if err := setFilter(f); err != nil {
			t.Fatal(err)
		}
		w := state.State{Filter: f}
		w.Normalize()
		if got := observedFilter(t).String(); got != w.Filter.String() {
			t.Errorf("observed:\n%s", got)
		}
		if err := setFilter(state.Filter{}); err != nil {
			t.Fatal(err)
		}
		if after := nstest.Sh(t, "nft list ruleset"); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	}, tools...)
}

func TestCommentTooLong(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, c := range []string{strings.Repeat("x", maxComment+1), `say "no"`, "two\nlines"} {
			f := state.Filter{Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "input",
				Rules: []state.FilterRule{{Action: state.Accept{}, Comment: c}}}}}
			if err := setFilter(f); err == nil {
				t.Errorf("accepted a comment of %d bytes: %q", len(c), c)
			}
		}
		f := state.Filter{Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "input",
			Rules: []state.FilterRule{{Action: state.Accept{}, Comment: strings.Repeat("x", maxComment)}}}}}
		if err := setFilter(f); err != nil {
			t.Error(err)
		}
		if got := observedFilter(t).String(); got != f.String() {
			t.Errorf("observed:\n%s", got)
		}
	}, tools...)
}
