package flannel

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// The location east of the field cases: e1 is its gateway, w1 is in another one.
func node(name string, internal, pods []netip.Prefix) model.Node {
	return model.Node{Name: name, Location: "east", Spoken: true, Ready: true, InternalIPs: internal, PodPrefixes: pods}
}

func e1() model.Node { return node("e1", prefixes("10.0.0.1/24"), prefixes("10.244.1.0/24")) }
func e2() model.Node { return node("e2", prefixes("10.0.0.2/24"), prefixes("10.244.2.0/24")) }
func e3() model.Node { return node("e3", prefixes("10.0.1.3/24"), prefixes("10.244.3.0/24")) }

func both(name, internal, internal6, pods, pods6 string) model.Node {
	return node(name, prefixes(internal, internal6), prefixes(pods, pods6))
}

func remotes(mtu int, texts ...string) []adapter.Remote {
	var rs []adapter.Remote
	for _, p := range prefixes(texts...) {
		rs = append(rs, adapter.Remote{Prefix: p, Location: "west", MTU: mtu})
	}
	return rs
}

// hop reads "10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450".
func hop(t *testing.T, text string) adapter.NextHop {
	t.Helper()
	words := strings.Fields(text)
	h := adapter.NextHop{Prefix: netip.MustParsePrefix(words[0])}
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "via":
			i++
			h.Via = netip.MustParseAddr(words[i])
		case "dev":
			i++
			h.Device = words[i]
		case "mtu":
			i++
			h.MTU, _ = strconv.Atoi(words[i])
		case "onlink":
			h.OnLink = true
		default:
			t.Fatalf("what is %q in %q?", words[i], text)
		}
	}
	return h
}

func member(self, gateway model.Node, remote []adapter.Remote, others ...model.Node) adapter.View {
	return adapter.View{Self: self, Gateway: &gateway, Members: append([]model.Node{gateway}, others...), Remote: remote, Interface: "kilo0"}
}

func gateway(self model.Node, members ...model.Node) adapter.View {
	return adapter.View{Self: self, Serving: true, Gateway: &self, Members: members, Remote: remotes(1420, "10.244.9.0/24"), Interface: "kilo0"}
}

func TestInject(t *testing.T) {
	west := []string{"10.4.0.2/32", "10.244.9.0/24", "192.168.9.9/32"}
	for _, c := range []struct {
		name string
		view adapter.View
		main []string // Flannel's routes in main
		want []string
		err  []string // parts of the error
	}{
		{
			name: "TC2: a member reaches another location through the gateway's end of Flannel's tunnel",
			view: member(e2(), e1(), remotes(1420, west...)),
			main: []string{
				"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450",
				"10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink mtu 1450",
			},
			want: []string{
				"route table 1107 10.4.0.2/32 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420",
				"route table 1107 10.244.9.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420",
				"route table 1107 192.168.9.9/32 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420",
			},
		},
		{
			name: "TC3: what comes out of the gateway's tunnel for a member's address goes the way the member sends",
			view: gateway(e1(), e2()),
			main: []string{
				"10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink mtu 1450",
				"10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink mtu 1450",
			},
			want: []string{"route table 1108 10.0.0.2/32 via 10.244.2.0 dev flannel.1 onlink mtu 1450"},
		},
		{
			name: "TC4: VNI 42",
			view: member(e2(), e1(), remotes(1420, "10.244.9.0/24")),
			main: []string{"10.244.1.0/24 via 10.244.1.0 dev flannel.42 onlink mtu 1450"},
			want: []string{"route table 1107 10.244.9.0/24 via 10.244.1.0 dev flannel.42 src 10.0.0.2 onlink mtu 1420"},
		},
		{
			name: "TC4: host-gw goes by the gateway's LAN address",
			view: member(e2(), e1(), remotes(1420, "10.244.9.0/24")),
			main: []string{"10.244.1.0/24 via 10.0.0.1 dev eth0 mtu 1500"},
			want: []string{"route table 1107 10.244.9.0/24 via 10.0.0.1 dev eth0 src 10.0.0.2 mtu 1420"},
		},
		{
			name: "vxlan with DirectRouting: the gateway answers each member the way Flannel reaches it",
			view: gateway(e1(), e2(), e3()),
			main: []string{
				"10.244.2.0/24 via 10.0.0.2 dev eth0 mtu 1500",
				"10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink mtu 1450",
			},
			want: []string{
				"route table 1108 10.0.0.2/32 via 10.0.0.2 dev eth0 mtu 1500",
				"route table 1108 10.0.1.3/32 via 10.244.3.0 dev flannel.1 onlink mtu 1450",
			},
		},
		{
			name: "the smallest packet size on the way counts, on this node or behind the gateway",
			view: member(e2(), e1(), append(remotes(1500, "10.244.7.0/24"), append(remotes(1280, "10.244.8.0/24"), remotes(0, "10.244.9.0/24")...)...)),
			main: []string{"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450"},
			want: []string{
				"route table 1107 10.244.7.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1450",
				"route table 1107 10.244.8.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1280",
				"route table 1107 10.244.9.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1450",
			},
		},
		{
			name: "no route to the gateway's pods yet: nothing, and a word about it",
			view: member(e2(), e1(), remotes(1420, west...)),
			main: []string{"10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink mtu 1450"},
			err:  []string{"e1", "10.244.1.0/24"},
		},
		{
			name: "one member without a route of Flannel's hurts no other",
			view: gateway(e1(), e2(), e3()),
			main: []string{"10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink mtu 1450"},
			want: []string{"route table 1108 10.0.1.3/32 via 10.244.3.0 dev flannel.1 onlink mtu 1450"},
			err:  []string{"e2", "10.244.2.0/24"},
		},
		{
			name: "a gateway with two pod prefixes: any that Flannel has a route to",
			view: member(e2(), node("e1", prefixes("10.0.0.1/24"), prefixes("10.245.1.0/24", "10.244.1.0/24")), remotes(1420, "10.244.9.0/24")),
			main: []string{"10.245.1.0/24 via 10.245.1.0 dev flannel.1 onlink mtu 1450"},
			want: []string{"route table 1107 10.244.9.0/24 via 10.245.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420"},
		},
		{
			name: "a gateway that publishes no pod prefix",
			view: member(e2(), node("e1", prefixes("10.0.0.1/24"), nil), remotes(1420, "10.244.9.0/24")),
			err:  []string{"e1 publishes no IPv4 pod prefix"},
		},
		{
			name: "no gateway, nothing to add",
			view: adapter.View{Self: e2(), Members: []model.Node{e1()}, Remote: remotes(1420, west...), Interface: "kilo0"},
			main: []string{"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450"},
		},
		{
			name: "IPv6 elsewhere, none in Flannel: IPv4 goes on without a word",
			view: member(e2(), e1(), append(remotes(1420, "10.244.9.0/24"), remotes(1420, "fd00::9/128")...)),
			main: []string{"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450"},
			want: []string{"route table 1107 10.244.9.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420"},
		},
		{
			name: "both families, each by its own next hop and source",
			view: member(
				both("e2", "10.0.0.2/24", "fd00:a::2/64", "10.244.2.0/24", "fd00:10:2::/64"),
				both("e1", "10.0.0.1/24", "fd00:a::1/64", "10.244.1.0/24", "fd00:10:1::/64"),
				append(remotes(1420, "10.244.9.0/24"), remotes(1400, "fd00:10:9::/64")...)),
			main: []string{
				"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450",
				"fd00:10:1::/64 via fd00:10:1:: dev flannel-v6.1 onlink mtu 1430",
			},
			want: []string{
				"route table 1107 10.244.9.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420",
				"route table 1107 fd00:10:9::/64 via fd00:10:1:: dev flannel-v6.1 src fd00:a::2 onlink mtu 1400",
			},
		},
		{
			name: "both families, IPv6 not there yet: IPv4 goes on",
			view: member(
				both("e2", "10.0.0.2/24", "fd00:a::2/64", "10.244.2.0/24", "fd00:10:2::/64"),
				both("e1", "10.0.0.1/24", "fd00:a::1/64", "10.244.1.0/24", "fd00:10:1::/64"),
				append(remotes(1420, "10.244.9.0/24"), remotes(1400, "fd00:10:9::/64")...)),
			main: []string{
				"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450",
				"fd00:10:3::/64 via fd00:10:3:: dev flannel-v6.1 onlink mtu 1430",
			},
			want: []string{"route table 1107 10.244.9.0/24 via 10.244.1.0 dev flannel.1 src 10.0.0.2 onlink mtu 1420"},
			err:  []string{"e1", "fd00:10:1::/64"},
		},
		{
			name: "a gateway answers both addresses of a member",
			view: gateway(
				both("e1", "10.0.0.1/24", "fd00:a::1/64", "10.244.1.0/24", "fd00:10:1::/64"),
				both("e2", "10.0.0.2/24", "fd00:a::2/64", "10.244.2.0/24", "fd00:10:2::/64")),
			main: []string{
				"10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink mtu 1450",
				"fd00:10:2::/64 via fd00:10:2:: dev flannel-v6.1 onlink mtu 1430",
			},
			want: []string{
				"route table 1108 10.0.0.2/32 via 10.244.2.0 dev flannel.1 onlink mtu 1450",
				"route table 1108 fd00:a::2/128 via fd00:10:2:: dev flannel-v6.1 onlink mtu 1430",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f adapter.Facts
			for _, h := range c.main {
				f.NextHops = append(f.NextHops, hop(t, h))
			}
			add, err := New(Options{}).Inject(c.view, f)
			if len(add.Links) > 0 {
				t.Errorf("Flannel needs no link of ours: %v", add.Links)
			}
			if diff := cmp.Diff(c.want, lines(add)); diff != "" {
				t.Error(diff)
			}
			if (err != nil) != (c.err != nil) {
				t.Fatalf("error %v, want one with %q", err, c.err)
			}
			for _, part := range c.err {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func lines(a adapter.Additions) []string {
	var s []string
	for _, r := range a.Routes {
		s = append(s, r.String())
	}
	return s
}

// world is a random location with its Flannel, seen from one node.
type world struct {
	view  adapter.View
	facts adapter.Facts
}

func randomWorld(r *rand.Rand) world {
	var w world
	nodes := make([]model.Node, 1+r.IntN(6))
	v6 := r.IntN(2) == 0
	for i := range nodes {
		n := node("e"+strconv.Itoa(i), nil, nil)
		octet := byte(i + 1)
		n.InternalIPs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, octet}), 24)}
		n.PodPrefixes = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, octet, 0}), 24)}
		if v6 && r.IntN(4) > 0 {
			n.InternalIPs = append(n.InternalIPs, netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 7: 1, 15: octet}), 64))
			n.PodPrefixes = append(n.PodPrefixes, netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 7: octet}), 64))
		}
		nodes[i] = n
	}
	self := r.IntN(len(nodes))
	w.view = adapter.View{Self: nodes[self], Serving: r.IntN(2) == 0, Interface: "kilo0"}
	if w.view.Serving {
		w.view.Gateway = &w.view.Self
	} else if len(nodes) > 1 {
		g := (self + 1) % len(nodes)
		w.view.Gateway = &nodes[g]
	}
	for i, n := range nodes {
		if i == self {
			w.facts.PodPrefixes = n.PodPrefixes
			continue
		}
		w.view.Members = append(w.view.Members, n)
		for _, p := range n.PodPrefixes {
			switch r.IntN(5) {
			case 0: // Flannel is not that far yet
			case 1:
				w.facts.NextHops = append(w.facts.NextHops, adapter.NextHop{Prefix: p, Via: n.InternalIP(p.Addr().Is4()), Device: "eth0", MTU: 1500})
			default:
				w.facts.NextHops = append(w.facts.NextHops, adapter.NextHop{Prefix: p, Via: p.Addr(), Device: "flannel.1", OnLink: true, MTU: 1450})
			}
		}
	}
	for i := range 1 + r.IntN(5) {
		octet := byte(100 + i)
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, octet, 0}), 24)
		if v6 && r.IntN(3) == 0 {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 7: octet}), 64)
		}
		w.view.Remote = append(w.view.Remote, adapter.Remote{Prefix: p, Location: "west", MTU: []int{0, 1280, 1420}[r.IntN(3)]})
	}
	return w
}

// Whatever the cluster looks like: a member gets every IPv4 prefix of other
// locations or none, and a word where none; a gateway gets at most the way back
// to its members' addresses; every next hop is one of Flannel's; families are
// never mixed; and the order in which nodes and routes come does not matter.
func TestInjectProperties(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(r)
		add, err := New(Options{}).Inject(w.view, w.facts)

		dst := map[netip.Prefix]bool{}
		for _, route := range add.Routes {
			if dst[route.Dst] {
				t.Fatalf("seed %d: two routes to %s", seed, route.Dst)
			}
			dst[route.Dst] = true
			if route.Type != state.Unicast || route.Metric != 0 || route.Device == "" {
				t.Fatalf("seed %d: %s", seed, route)
			}
			v4 := route.Dst.Addr().Is4()
			if route.Via.Is4() != v4 || route.Source.IsValid() && route.Source.Is4() != v4 {
				t.Fatalf("seed %d: %s mixes families", seed, route)
			}
			if !slices.ContainsFunc(w.facts.NextHops, func(h adapter.NextHop) bool {
				return h.Via == route.Via && h.Device == route.Device && h.OnLink == route.OnLink && route.MTU <= h.MTU && route.MTU > 0
			}) {
				t.Fatalf("seed %d: %s goes no way of Flannel's", seed, route)
			}
			wantTable := state.TableOverlay
			if w.view.Serving {
				wantTable = state.TableReturn
			}
			if route.Table != wantTable {
				t.Fatalf("seed %d: %s, want table %d", seed, route, wantTable)
			}
		}
		missing := 0
		if w.view.Serving {
			for _, m := range w.view.Members {
				if !dst[netip.PrefixFrom(m.InternalIP(true), 32)] {
					missing++
				}
			}
		} else if w.view.Gateway != nil {
			for _, remote := range w.view.Remote {
				if remote.Prefix.Addr().Is4() && !dst[remote.Prefix] {
					missing++
				}
			}
		}
		if missing > 0 && err == nil {
			t.Fatalf("seed %d: %d IPv4 destinations are missing without a word", seed, missing)
		}

		shuffled := w
		shuffled.view.Members = slices.Clone(w.view.Members)
		shuffled.view.Remote = slices.Clone(w.view.Remote)
		shuffled.facts.NextHops = slices.Clone(w.facts.NextHops)
		r.Shuffle(len(shuffled.view.Members), func(i, j int) {
			m := shuffled.view.Members
			m[i], m[j] = m[j], m[i]
		})
		r.Shuffle(len(shuffled.view.Remote), func(i, j int) {
			m := shuffled.view.Remote
			m[i], m[j] = m[j], m[i]
		})
		r.Shuffle(len(shuffled.facts.NextHops), func(i, j int) {
			m := shuffled.facts.NextHops
			m[i], m[j] = m[j], m[i]
		})
		again, _ := New(Options{}).Inject(shuffled.view, shuffled.facts)
		want, got := lines(add), lines(again)
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: the order of what goes in matters: %s", seed, diff)
		}
	}
}
