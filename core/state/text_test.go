package state_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// gateway is e1 of the fixture in docs/architecture.md: location east, one
// other location and one Peer.
func gateway() state.State {
	addr := netip.MustParseAddr
	dst := netip.MustParsePrefix
	return state.State{
		Links: []state.Link{{
			Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Addresses: prefixes("10.4.0.1/32"),
			Tunnel: &state.Tunnel{Key: model.Key{0xe1}, Port: 51820, Mark: state.Mark, Peers: []state.Peer{
				{Name: "node/w1", Key: model.Key{0x01, 31: 9}, Endpoint: netip.MustParseAddrPort("203.0.113.9:51820"), Keepalive: 10 * time.Second,
					AllowedIPs: prefixes("10.4.0.2/32", "10.244.9.0/24", "192.168.9.9/32")},
				{Name: "peer/laptop", Key: model.Key{0x02}, PresharedKey: model.NewPresharedKey([32]byte{5, 5, 5}), AllowedIPs: prefixes("10.5.0.1/32")},
			}},
		}},
		Routes: []state.Route{
			{Table: state.TableOverlay, Dst: dst("10.244.9.0/24"), Type: state.Unicast, Device: "kilo0", Source: addr("10.0.0.1"), MTU: 1420},
			{Table: state.TableOverlay, Dst: dst("10.244.9.0/24"), Type: state.Unreachable, Metric: state.MetricLast},
			{Table: state.TableOverlay, Dst: dst("10.0.0.0/24"), Type: state.Throw},
			{Table: state.TableReturn, Dst: dst("10.0.0.2/32"), Type: state.Unicast, Device: "flannel.1", Via: addr("10.244.2.0"), OnLink: true},
		},
		Rules: []state.Rule{
			{Priority: state.PriorityTunnel, Proto: "udp", SrcPort: 51820, Table: state.TableMain},
			{Priority: state.PriorityTunnel, Proto: "udp", DstPort: 51820, Table: state.TableMain},
			{Priority: state.PriorityTunnel, From: addr("198.51.100.1"), Proto: "tcp", SrcPort: 6443, Table: state.TableMain},
			{Priority: state.PriorityReturn, IIF: "kilo0", Table: state.TableReturn},
			{Priority: state.PriorityOverlay, Invert: true, Mark: state.Mark, Table: state.TableOverlay},
		},
		Filter: state.Filter{
			Sets: []state.Set{{Name: "remote4", Elements: prefixes("10.4.0.2/32", "10.244.9.0/24", "192.168.9.9/32")}},
			Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300, Rules: []state.FilterRule{
				{Matches: []state.Match{state.MarkIs{Mark: state.Mark}}, Action: state.Accept{}, Comment: "WireGuard's own packets"},
				{Matches: []state.Match{state.AddrInSet{Set: "remote4"}}, Action: state.Drop{}},
			}}},
		},
	}
}

func TestStateText(t *testing.T) {
	const want = `link kilo0 wireguard mtu 1420 addr 10.4.0.1/32
  tunnel key 4QAA…AAA= port 51820 mark 0x1000
  peer node/w1 (AQAA…AAk=) endpoint 203.0.113.9:51820 keepalive 10s allowed 10.4.0.2/32 10.244.9.0/24 192.168.9.9/32
  peer peer/laptop (AgAA…AAA=) psk sha256:07bac797 allowed 10.5.0.1/32
route table 1107 throw 10.0.0.0/24
route table 1107 10.244.9.0/24 dev kilo0 src 10.0.0.1 mtu 1420
route table 1107 unreachable 10.244.9.0/24 metric 4294967295
route table 1108 10.0.0.2/32 via 10.244.2.0 dev flannel.1 onlink
rule 105 inet ipproto udp dport 51820 lookup main
rule 105 inet ipproto udp sport 51820 lookup main
rule 105 inet from 198.51.100.1 ipproto tcp sport 6443 lookup main
rule 106 inet iif kilo0 lookup 1108
rule 107 inet not fwmark 0x1000 lookup 1107
table inet kilo {
	set remote4 {
		type ipv4_addr
		flags interval
		elements = { 10.4.0.2,
			     10.244.9.0/24,
			     192.168.9.9 }
	}

	chain guard {
		type filter hook postrouting priority 300; policy accept;
		meta mark 0x00001000 accept comment "WireGuard's own packets"
		ip daddr @remote4 drop
	}
}
`
	if got := gateway().String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := (state.State{}).String(); got != "" {
		t.Errorf("nothing prints %q", got)
	}
}

func TestNoTextHoldsAPresharedKey(t *testing.T) {
	secret := [32]byte{0xde, 0xad, 0xbe, 0xef, 31: 0x77}
	s := gateway()
	s.Links[0].Tunnel.Peers[1].PresharedKey = model.NewPresharedKey(secret)
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		texts = append(texts, fmt.Sprintf(verb, s))
		texts = append(texts, fmt.Sprintf(verb, s.Links[0].Tunnel.Peers))
		for _, c := range state.Diff(state.State{}, s) {
			texts = append(texts, fmt.Sprintf(verb, c))
		}
	}
	all := strings.ToLower(strings.Join(texts, "\n"))
	for _, form := range []string{"deadbeef", "3q2+7w", "222, 173", "0xde, 0xad", "222 173"} {
		if strings.Contains(all, form) {
			t.Errorf("the secret shows as %q", form)
		}
	}
}

// What we print is what nft prints after it read it.
func TestFilterTextIsWhatNftPrints(t *testing.T) {
	if reason := os.Getenv("KILO_TEST_SKIP_ROOT"); reason != "" {
		t.Skip(reason)
	}
	priorities := state.Filter{}
	for _, hook := range []string{"prerouting", "input", "forward", "output", "postrouting"} {
		for p := -311; p <= 311; p++ {
			priorities.Chains = append(priorities.Chains, state.Chain{
				Name: fmt.Sprintf("%s%d", hook, len(priorities.Chains)), Type: state.FilterChain, Hook: hook, Priority: p})
		}
	}
	for name, f := range map[string]state.Filter{
		"vocabulary": kerneltest.Vocabulary("kilo0"),
		"priorities": priorities,
		"gateway":    gateway().Filter,
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("unshare", "-n", "sh", "-c", "nft -f - && nft list table inet kilo")
			cmd.Stdin = strings.NewReader(f.String())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("needs root and nft (KILO_TEST_SKIP_ROOT=REASON skips): %v\n%s\ngiven:\n%s", err, out, f)
			}
			got, want := strings.Fields(string(out)), strings.Fields(f.String())
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					near := func(w []string) string { return strings.Join(w[max(0, i-12):min(len(w), i+5)], " ") }
					t.Fatalf("nft prints\n%s\nwe print\n%s", near(got), near(want))
				}
			}
			if len(got) != len(want) {
				t.Errorf("nft prints %d words, we print %d", len(got), len(want))
			}
		})
	}
}

// Whoever adds a Match or an Action adds it to the vocabulary that is compared
// with nft and the kernel.
func TestVocabularyIsComplete(t *testing.T) {
	used := map[string]bool{}
	for _, c := range kerneltest.Vocabulary("kilo0").Chains {
		for _, r := range c.Rules {
			used[fmt.Sprintf("%T", r.Action)] = true
			for _, m := range r.Matches {
				used[fmt.Sprintf("%T", m)] = true
			}
		}
	}
	for _, name := range words(t) {
		if name != "state.Unknown" && !used[name] {
			t.Errorf("%s is not in kerneltest.Vocabulary", name)
		}
	}
}

// words lists the types that are a Match or an Action, by the methods that
// make them so.
func words(t *testing.T) (types []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "filter.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv != nil && (f.Name.Name == "match" || f.Name.Name == "action") {
			types = append(types, "state."+f.Recv.List[0].Type.(*ast.Ident).Name)
		}
	}
	if len(types) < 20 {
		t.Fatalf("found only %q", types)
	}
	return types
}
