package agent

import (
	"net/netip"
	"testing"

	"github.com/kilo-overlay/kilo/adapters/cilium"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// What is wanted has its way; the rest of what stands stays; together they are
// a state that a kernel takes, and keeping again keeps the same.
func TestKeep(t *testing.T) {
	peer := func(name, at string, allowed ...string) state.Peer {
		return state.Peer{Key: key(name), Endpoint: netip.MustParseAddrPort(at), AllowedIPs: prefixes(allowed...)}
	}
	link := func(address string, peers ...state.Peer) state.Link {
		return state.Link{Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Addresses: prefixes(address),
			Tunnel: &state.Tunnel{Key: key("e1"), Port: 51820, Mark: state.Mark, Peers: peers}}
	}
	route := func(dst string, kind state.RouteType) state.Route {
		r := state.Route{Table: state.TableOverlay, Dst: netip.MustParsePrefix(dst), Type: kind}
		if kind == state.Unicast {
			r.Device = "kilo0"
		} else {
			r.Metric = state.MetricLast
		}
		return r
	}
	guard := func(elements ...string) state.Filter {
		return state.Filter{
			Sets: []state.Set{{Name: "remote4", Elements: prefixes(elements...)}},
			Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300, Rules: []state.FilterRule{
				{Matches: []state.Match{state.AddrInSet{Set: "remote4"}}, Action: state.Drop{}},
			}}},
		}
	}
	observed := state.State{
		Links: []state.Link{link("10.4.0.1/32",
			peer("gone", "203.0.113.1:51820", "10.244.7.0/24", "10.244.8.0/24"),
			peer("w1", "203.0.113.9:40000", "10.244.9.0/24"))},
		Routes: []state.Route{route("10.244.7.0/24", state.Unicast), route("10.244.8.0/24", state.Unreachable), route("10.244.9.0/24", state.Unicast)},
		Rules:  []state.Rule{{Priority: 107, Invert: true, Mark: state.Mark, Table: state.TableOverlay}},
		Filter: guard("10.244.7.0/24", "10.244.0.0/16"),
	}
	wanted := state.State{
		Links: []state.Link{link("10.4.0.3/32",
			// 10.244.8.0/24 has moved to w1.
			peer("w1", "203.0.113.9:51820", "10.244.8.0/24", "10.244.9.0/24", "192.168.9.9/32"))},
		Routes: []state.Route{route("10.244.8.0/24", state.Unicast), route("10.244.9.0/24", state.Unicast)},
		Rules:  []state.Rule{{Priority: 106, IIF: "kilo0", Table: state.TableReturn}},
		Filter: guard("10.244.9.0/24", "192.168.9.9/32"),
	}
	want := state.State{
		Links: []state.Link{link("10.4.0.1/32",
			peer("w1", "203.0.113.9:51820", "10.244.8.0/24", "10.244.9.0/24", "192.168.9.9/32"),
			peer("gone", "203.0.113.1:51820", "10.244.7.0/24"))},
		Routes: []state.Route{route("10.244.7.0/24", state.Unicast), route("10.244.8.0/24", state.Unicast),
			route("10.244.8.0/24", state.Unreachable), route("10.244.9.0/24", state.Unicast)},
		Rules:  []state.Rule{{Priority: 106, IIF: "kilo0", Table: state.TableReturn}, {Priority: 107, Invert: true, Mark: state.Mark, Table: state.TableOverlay}},
		Filter: guard("10.244.0.0/16", "192.168.9.9/32"),
	}
	want.Links[0].Addresses = prefixes("10.4.0.1/32", "10.4.0.3/32")

	// Diff's own rule: an endpoint that is wanted by nobody equals any.
	got := keep(observed, wanted)
	if d := state.Diff(want, got); len(d) > 0 {
		t.Errorf("keep gives\n%s\nwant\n%s\ndifference %v", got, want, d)
	}
	k := kerneltest.New("kilo0", key("e1"))
	for _, c := range state.Diff(state.State{}, got) {
		if err := k.Apply(t.Context(), c); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
	if d := state.Diff(got, keep(got, wanted)); len(d) > 0 {
		t.Errorf("keeping twice is another thing: %v", d)
	}
	// An agent that knows nothing at all keeps everything.
	if d := state.Diff(observed, keep(observed, state.State{})); len(d) > 0 {
		t.Errorf("keeping beside nothing changes %v", d)
	}
}

// A member's way to its gateway is the host CNI's to say, which an agent that
// has just started has not heard yet. The routes that take it are kept, so the
// guard must go on letting it pass, before its drop.
func TestKeepLetsPassWhatTheGuardLetPass(t *testing.T) {
	drop := state.FilterRule{Matches: []state.Match{state.AddrInSet{Set: "remote4"}}, Action: state.Drop{}}
	pass := state.FilterRule{Matches: []state.Match{state.OutInterface{Name: "flannel.1"}, state.NextHop{Addr: netip.MustParseAddr("10.244.1.0")}}, Action: state.Accept{}}
	filter := func(rules ...state.FilterRule) state.Filter {
		return state.Filter{
			Sets:   []state.Set{{Name: "remote4", Elements: prefixes("10.244.9.0/24")}},
			Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300, Rules: rules}},
		}
	}
	for name, observed := range map[string]state.Filter{"lost": filter(pass, drop), "there already": filter(pass, drop)} {
		wanted := filter(drop)
		if name == "there already" {
			wanted = filter(pass, drop)
		}
		got := keepFilter(observed, wanted)
		if d := state.Diff(state.State{Filter: filter(pass, drop)}, state.State{Filter: got}); len(d) > 0 {
			t.Errorf("%s: keep gives\n%s", name, got)
		}
	}
}

// An agent that does not know the host CNI yet changes nothing of what it or an
// earlier one left behind: no address moves to the link, no rule is written anew.
func TestKeepWhileTheCNIIsUnknown(t *testing.T) {
	nodes := []model.Node{
		{Name: "e1", UID: "1", Location: "east", InternalIPs: prefixes("10.0.0.1/24"), PodPrefixes: prefixes("10.244.1.0/24"), WireGuardIPs: addrs("10.4.0.1", "fd00:4::1"),
			Endpoint: model.Endpoint{Addr: netip.MustParseAddr("198.51.100.1"), Port: 51820}, Epoch: 1},
		{Name: "e2", UID: "2", Location: "east", InternalIPs: prefixes("10.0.0.2/24"), PodPrefixes: prefixes("10.244.2.0/24"), WireGuardIPs: addrs("10.4.0.2", "fd00:4::2")},
		{Name: "w1", UID: "3", Location: "west", InternalIPs: prefixes("192.168.9.9/24"), PodPrefixes: prefixes("10.244.9.0/24"), WireGuardIPs: addrs("10.4.0.3", "fd00:4::3"),
			Endpoint: model.Endpoint{Addr: netip.MustParseAddr("203.0.113.9"), Port: 51820}, Epoch: 1},
	}
	for i := range nodes {
		n := &nodes[i]
		n.Key, n.Ready, n.Spoken, n.TunnelMTU = key(n.Name), true, true, 1420
	}
	s := model.Snapshot{Nodes: nodes}
	s.Sort()
	for _, self := range []string{"e1", "e2"} {
		for _, unnumbered := range []bool{true, false} {
			f := plan.Facts{Self: self, Key: key(self), Interface: "kilo0", Port: 51820, TunnelMTU: 1420, LAN: adapter.LAN{Device: "eth0", MTU: 1500},
				Connected: prefixes("10.0.0.0/24"), AdapterKnown: true, Adapter: adapter.Facts{CNI: "cilium", Unnumbered: unnumbered}}
			known, _ := plan.Plan(s, f, cilium.New(cilium.Options{}))
			f.AdapterKnown, f.Adapter = false, adapter.Facts{}
			unknown, _ := plan.Plan(s, f, nil)
			if changes := state.Diff(known, keep(known, unknown)); len(changes) > 0 {
				t.Errorf("%s, unnumbered %t: %v", self, unnumbered, changes)
			}
			for _, l := range unknown.Links {
				if len(l.Addresses) > 0 {
					t.Errorf("%s: %s is to have %s before it is known where that may be", self, l.Name, l.Addresses)
				}
			}
		}
	}
}
