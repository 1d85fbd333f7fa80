package kerneltest

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Fixture is a Kernel under test, together with what a stranger could do to
// it. It starts empty: loopback alone, and for a Kernel that cannot make a
// WireGuard device by itself (there is none in this kernel) that device,
// without addresses or peers. *Kernel is one.
//
// What cannot be done fails the test that the Fixture was made for.
type Fixture interface {
	apply.Kernel

	// WireGuard names the WireGuard link, and the public key of the private
	// key that the Kernel holds.
	WireGuard() (name string, key model.Key)

	// AddLink makes a link of any kind that is not ours, up, with addresses
	// (IPv6 ones usable at once) and the routes that they bring.
	AddLink(name string, addresses ...netip.Prefix)
	// RemoveLink deletes a link behind the Kernel's back.
	RemoveLink(name string)
	// TakeDown takes a link down behind the Kernel's back.
	TakeDown(name string)
	// AddRoute adds a unicast route of protocol static.
	AddRoute(r state.Route) error
	// AddRule adds a rule without our protocol.
	AddRule(r state.Rule)
	// FlushChain removes all rules from a chain of our table.
	FlushChain(name string)

	// Everything prints all links with their addresses, all routes, rules and
	// tables there are, in a stable order and without anything that changes by
	// itself (counters, lifetimes, MAC addresses, handles).
	Everything() string
	// FilterText is what "nft list table inet kilo" prints, "" without a table.
	FilterText() string
}

// Programs are what tests of a real kernel call: a machine made for them needs
// these, and iptables.
func Programs() []string { return nstest.Programs() }

// Suite tests a Kernel: that what is wanted is what is there afterwards, that
// nothing else is touched, and that what happens behind its back is seen and
// mended. newKernel is called once for each subtest, one after the other; it
// cleans up by t.Cleanup.
func Suite(t *testing.T, newKernel func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		test func(*scene)
	}{
		{"what is wanted is what is there", testWhole},
		{"strangers are not seen and not touched", testStrangers},
		{"everything goes", testEverythingGoes},
		{"one failure does not stop the rest", testGoesOn},
		{"link: changed in place", testLinkChanged},
		{"link: deleted or down, mended", testLinkMended},
		{"link: recreated where it must be", testLinkRecreated},
		{"link: a second tunnel", testLinkStandby},
		{"link: somebody else's", testLinkForeign},
		{"link: without addresses its routes stay", testLinkUnnumbered},
		{"link: addresses on the loopback link", testLoopback},
		{"peer: patched one by one", testPeerPatched},
		{"peer: allowed IPs move", testPeerMoves},
		{"route: identity", testRouteIdentity},
		{"route: IPv6", testRoute6},
		{"route: refused", testRouteRefused},
		{"route: source", testRouteSource},
		{"rule: once", testRules},
		{"filter: as nft prints it", testFilterText},
		{"filter: all or nothing", testFilterWhole},
		{"random walk", testRandomWalk},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(newScene(t, newKernel(t))) })
	}
}

// scene is a Fixture with a LAN: lan0 has 10.0.0.1/24 and fd00:10::1/64.
type scene struct {
	Fixture
	*testing.T
	ctx  context.Context
	wg   string
	key  model.Key
	port uint16
}

func newScene(t *testing.T, f Fixture) *scene {
	s := &scene{Fixture: f, T: t, ctx: context.Background(), port: 51820}
	s.wg, s.key = f.WireGuard()
	f.AddLink("lan0", prefix("10.0.0.1/24"), prefix("fd00:10::1/64"))
	return s
}

// bare is the least that the suite ever wants: the WireGuard link alone.
func (s *scene) bare() state.State {
	return state.State{Links: []state.Link{{
		Name: s.wg, Kind: state.WireGuard, MTU: 1420,
		Tunnel: &state.Tunnel{Key: s.key, Port: s.port, Mark: state.Mark},
	}}}
}

// vxlan is an encapsulation link over lan0.
func (s *scene) vxlan() state.Link {
	return state.Link{Name: state.VXLANLink, Kind: state.VXLAN, MTU: 1370, VXLAN: &state.VXLANConfig{
		ID: 77, Port: 8473, Device: "lan0", Local: addr("10.0.0.1"), MAC: "02:00:00:00:00:01",
		Remotes: []state.VXLANRemote{
			{Inner: addr("10.4.0.9"), MAC: "02:00:00:00:00:09", Outer: addr("10.0.0.9")},
			{Inner: addr("10.4.0.10"), MAC: "02:00:00:00:00:0a", Outer: addr("10.0.0.10")},
		},
	}}
}

// whole has some of everything.
func (s *scene) whole() state.State {
	w := s.bare()
	w.Links[0].Addresses = []netip.Prefix{prefix("10.4.0.1/32"), prefix("fd00:4::1/128")}
	w.Links[0].Tunnel.Peers = []state.Peer{
		s.peer("w1", "203.0.113.9:51820", 10, "10.244.9.0/24", "192.168.9.9/32", "10.4.0.2/32"),
		s.peer("n1", "", 0, "10.244.3.0/24", "fd00:3::/64"),
		s.peer("v6", "[2001:db8::9]:51820", 25, "fd00:9::/64", "fd00:99::9/128"),
	}
	w.Links[0].Tunnel.Peers[1].PresharedKey = model.NewPresharedKey([32]byte{7, 7, 7})
	w.Links = append(w.Links, s.vxlan())
	unreachable := func(dst string) state.Route {
		return state.Route{Table: state.TableOverlay, Dst: prefix(dst), Type: state.Unreachable, Metric: state.MetricLast}
	}
	w.Routes = []state.Route{
		{Table: state.TableOverlay, Dst: prefix("10.244.9.0/24"), Type: state.Unicast, Device: s.wg, Source: addr("10.0.0.1"), MTU: 1400},
		{Table: state.TableOverlay, Dst: prefix("192.168.9.9/32"), Type: state.Unicast, Device: s.wg, Source: addr("10.0.0.1")},
		{Table: state.TableOverlay, Dst: prefix("10.244.3.0/24"), Type: state.Unicast, Device: s.wg, Via: addr("10.4.0.3"), OnLink: true, Source: addr("10.0.0.1")},
		{Table: state.TableOverlay, Dst: prefix("10.0.0.0/24"), Type: state.Throw},
		unreachable("10.244.9.0/24"), unreachable("192.168.9.9/32"), unreachable("10.244.3.0/24"), unreachable("10.0.0.0/8"),
		unreachable("fd00:9::/64"),
		{Table: state.TableOverlay, Dst: prefix("fd00:9::/64"), Type: state.Unicast, Device: s.wg, Source: addr("fd00:10::1"), MTU: 1400},
		{Table: state.TableOverlay, Dst: prefix("fd00:10::/64"), Type: state.Throw},
		{Table: state.TableReturn, Dst: prefix("10.0.0.9/32"), Type: state.Unicast, Device: "lan0", Via: addr("10.0.0.9"), Metric: 7},
		{Table: state.TableReturn, Dst: prefix("10.0.0.10/32"), Type: state.Unicast, Device: state.VXLANLink, Via: addr("10.4.0.10"), OnLink: true},
	}
	w.Rules = s.rules()
	w.Filter = Vocabulary(s.wg)
	return w
}

func (s *scene) rules() []state.Rule {
	var rules []state.Rule
	for _, v6 := range []bool{false, true} {
		rules = append(rules,
			state.Rule{Priority: state.PriorityTunnel, V6: v6, Proto: "udp", SrcPort: s.port, Table: state.TableMain},
			state.Rule{Priority: state.PriorityTunnel, V6: v6, Proto: "udp", DstPort: s.port, Table: state.TableMain},
			state.Rule{Priority: state.PriorityReturn, V6: v6, IIF: s.wg, Table: state.TableReturn},
			state.Rule{Priority: state.PriorityOverlay, V6: v6, Invert: true, Mark: state.Mark, Table: state.TableOverlay},
		)
	}
	return rules
}

// run applies what is wanted and checks that it is there.
func (s *scene) run(wanted state.State) apply.Report {
	s.Helper()
	report, err := apply.Run(s.ctx, s, wanted)
	if err != nil {
		s.Fatalf("run: %v\n%s", err, report)
	}
	s.same(report.Now, wanted)
	return report
}

// rest applies what is there already and checks that nothing is done.
func (s *scene) rest(wanted state.State) {
	s.Helper()
	if report := s.run(wanted); report.String() != "" {
		s.Errorf("wanted what was there, yet changed:\n%s", report)
	}
}

func (s *scene) observe() state.State {
	s.Helper()
	now, err := s.Observe(s.ctx)
	if err != nil {
		s.Fatalf("observe: %v", err)
	}
	return now
}

// apply makes Changes that are to succeed.
func (s *scene) apply(changes ...state.Change) {
	s.Helper()
	for _, c := range changes {
		if err := s.Apply(s.ctx, c); err != nil {
			s.Fatalf("%s: %v", c, err)
		}
	}
}

// refuse makes a Change that is to fail, with words in its error, and to
// change nothing.
func (s *scene) refuse(c state.Change, words ...string) {
	s.Helper()
	before := s.observe()
	err := s.Apply(s.ctx, c)
	if err == nil {
		s.Errorf("%s: was not refused", c)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			s.Errorf("%s: error %q does not say %q", c, err, w)
		}
	}
	if d := difference(s.observe().String(), before.String()); d != "" {
		s.Errorf("%s: was refused, yet changed:\n%s", c, d)
	}
}

// same compares a State that was found with a wanted one by their text.
// state.Diff is not asked: it is under test.
func (s *scene) same(found, wanted state.State) {
	s.Helper()
	if d := difference(leavingOpen(found, wanted).String(), leavingOpen(wanted, wanted).String()); d != "" {
		s.Errorf("found (+) is not what was wanted (-):\n%s", d)
	}
}

// leavingOpen leaves out what a wanted State leaves open: names, and endpoints
// of peers that have none there.
func leavingOpen(s, wanted state.State) state.State {
	open := map[model.Key]bool{}
	for _, l := range wanted.Links {
		if l.Tunnel != nil {
			for _, p := range l.Tunnel.Peers {
				open[p.Key] = !p.Endpoint.IsValid()
			}
		}
	}
	s.Links = slices.Clone(s.Links)
	for i := range s.Links {
		l := &s.Links[i]
		*l = clone(*l)
		if l.Tunnel == nil {
			continue
		}
		for j := range l.Tunnel.Peers {
			p := &l.Tunnel.Peers[j]
			p.Name, p.Alive = "", false
			if open[p.Key] {
				p.Endpoint = netip.AddrPort{}
			}
		}
	}
	return s
}

// difference lists the lines that only one of two texts has.
func difference(found, wanted string) string {
	var b strings.Builder
	list := func(sign, these, others string) {
		count := map[string]int{}
		for line := range strings.Lines(others) {
			count[line]++
		}
		for line := range strings.Lines(these) {
			if count[line]--; count[line] < 0 {
				b.WriteString(sign + strings.TrimRight(line, "\n") + "\n")
			}
		}
	}
	list("+ ", found, wanted)
	list("- ", wanted, found)
	return b.String()
}
