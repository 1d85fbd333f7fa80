package kerneltest

import (
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/state"
)

func testWhole(s *scene) {
	w := s.whole()
	s.run(w)
	s.rest(w)
	// What another process finds is adopted, in whatever order it wants it.
	slices.Reverse(w.Links)
	slices.Reverse(w.Routes)
	slices.Reverse(w.Rules)
	slices.Reverse(w.Filter.Sets)
	slices.Reverse(w.Filter.Chains)
	s.rest(w)
	s.run(s.bare())
	s.rest(s.bare())
}

func testStrangers(s *scene) {
	s.run(s.bare())
	// Beside ours: in our table, at our priority, but not of our protocol.
	stranger := state.Route{Table: state.TableOverlay, Dst: prefix("10.244.9.0/24"), Type: state.Unicast, Device: "lan0", Metric: 3}
	if err := s.AddRoute(stranger); err != nil {
		s.Fatal(err)
	}
	s.AddRule(state.Rule{Priority: state.PriorityOverlay, Invert: true, Mark: state.Mark, Table: state.TableOverlay})
	// Of a table and a priority that are not ours.
	if err := s.AddRoute(state.Route{Table: 1109, Dst: prefix("10.244.9.0/24"), Type: state.Unicast, Device: "lan0"}); err != nil {
		s.Fatal(err)
	}
	s.AddRule(state.Rule{Priority: 900, IIF: s.wg, Table: 1109})
	s.AddLink("kilo-other", prefix("172.16.0.1/24"))

	before := s.Everything()
	s.same(s.observe(), s.bare())
	s.run(s.whole())
	s.rest(s.whole())
	s.run(s.bare())
	if d := difference(s.Everything(), before); d != "" {
		s.Errorf("after all of ours came and went:\n%s", d)
	}
}

func testEverythingGoes(s *scene) {
	s.run(s.whole())
	s.run(state.State{})
	s.rest(state.State{})
	if text := s.FilterText(); text != "" {
		s.Errorf("a table is left:\n%s", text)
	}
	s.refuse(state.SetRoute{Route: s.whole().Routes[0]}, s.wg)
}

func testGoesOn(s *scene) {
	w := s.whole()
	bad := state.Route{Table: state.TableOverlay, Dst: prefix("10.99.0.0/24"), Type: state.Unicast, Device: "nosuch"}
	w.Routes = append([]state.Route{bad}, w.Routes...)
	report, err := apply.Run(s.ctx, s, w)
	if err == nil || len(report.Failed) != 1 || report.Failed[0].Change != (state.SetRoute{Route: bad}) {
		s.Errorf("the route through a missing device, and only that, was to fail: %v\n%s", err, report)
	}
	s.same(report.Now, s.whole())
}

func testRouteIdentity(s *scene) {
	s.run(s.bare())
	dst := prefix("10.244.9.0/24")
	plain := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: s.wg}
	source := plain
	source.Source, source.MTU = addr("10.0.0.1"), 1380
	via := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: "lan0", Via: addr("10.0.0.9")}
	refusing := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unreachable}
	throw := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Throw}
	last := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unreachable, Metric: state.MetricLast}
	return2 := plain
	return2.Table = state.TableReturn

	expect := func(routes ...state.Route) {
		s.Helper()
		w := s.bare()
		w.Routes = routes
		s.same(s.observe(), w)
	}
	s.apply(state.SetRoute{Route: last}, state.SetRoute{Route: return2})
	// Each takes the place of the one before; the others stay.
	for _, r := range []state.Route{plain, source, via, refusing, plain, throw, refusing, throw, plain, source} {
		s.apply(state.SetRoute{Route: r}, state.SetRoute{Route: r})
		expect(r, last, return2)
	}
	// Deleting one that has been replaced leaves what replaced it.
	s.apply(state.DeleteRoute{Route: via}, state.DeleteRoute{Route: refusing})
	expect(source, last, return2)
	s.apply(state.DeleteRoute{Route: source}, state.DeleteRoute{Route: source})
	expect(last, return2)
	s.apply(state.DeleteRoute{Route: return2}, state.DeleteRoute{Route: last}, state.DeleteRoute{Route: last})
	expect()
	// Lengths make other routes of the same address.
	wide, host := plain, plain
	wide.Dst, host.Dst = prefix("10.244.0.0/16"), prefix("10.244.9.0/32")
	s.apply(state.SetRoute{Route: wide}, state.SetRoute{Route: host}, state.SetRoute{Route: plain}, state.DeleteRoute{Route: plain})
	expect(wide, host)
}

func testRoute6(s *scene) {
	s.run(s.bare())
	dst := prefix("fd00:9::/64")
	plain := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: s.wg}
	source := plain
	source.Source, source.MTU = addr("fd00:10::1"), 1380
	via := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: "lan0", Via: addr("fd00:10::9")}
	onlink := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: s.wg, Via: addr("fd00:4::9"), OnLink: true}
	refusing := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unreachable}
	throw := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Throw}
	local := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Local}
	last := state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unreachable, Metric: state.MetricLast}
	s.apply(state.SetRoute{Route: last})
	for _, r := range []state.Route{plain, source, via, refusing, onlink, throw, local, plain, local, refusing, throw, local, source} {
		w := s.bare()
		w.Routes = []state.Route{r, last}
		s.run(w)
		s.rest(w)
		// 1024 is what the kernel makes of 0.
		w.Routes[0].Metric = 1024
		s.rest(w)
	}
	s.apply(state.DeleteRoute{Route: source}, state.DeleteRoute{Route: source})
	w := s.bare()
	w.Routes = []state.Route{last}
	s.same(s.observe(), w)
	s.run(s.bare())
}

// testRouteSource takes away the address that is a route's preferred source.
func testRouteSource(s *scene) {
	w := s.bare()
	w.Links[0].Addresses = []netip.Prefix{prefix("10.4.0.1/32"), prefix("10.4.0.2/32"), prefix("fd00:4::1/128"), prefix("fd00:4::2/128")}
	w.Routes = []state.Route{
		{Table: state.TableOverlay, Dst: prefix("10.244.9.0/24"), Type: state.Unicast, Device: "lan0", Source: addr("10.4.0.2")},
		{Table: state.TableOverlay, Dst: prefix("fd00:9::/64"), Type: state.Unicast, Device: s.wg, Source: addr("fd00:4::2")},
	}
	s.run(w)
	w.Links[0].Addresses = []netip.Prefix{prefix("10.4.0.1/32"), prefix("fd00:4::1/128")}
	s.apply(state.SetLink{Link: w.Links[0]})
	// In a table that is not main, IPv4 leaves the route as it is; IPv6 chooses
	// the source itself from now on. (Linux 6.1 does so only for routes by the
	// device that had the address; later kernels for all.)
	w.Routes[1].Source = netip.Addr{}
	s.same(s.observe(), w)
}

func testRouteRefused(s *scene) {
	s.run(s.bare())
	r := func(dst, device, via, source string, onlink bool) state.SetRoute {
		r := state.Route{Table: state.TableOverlay, Dst: prefix(dst), Type: state.Unicast, Device: device, OnLink: onlink}
		if via != "" {
			r.Via = addr(via)
		}
		if source != "" {
			r.Source = addr(source)
		}
		return state.SetRoute{Route: r}
	}
	s.refuse(r("10.244.9.0/24", "nosuch", "", "", false), "nosuch")
	s.refuse(r("10.244.9.0/24", "lan0", "10.55.0.1", "", false))
	s.apply(r("10.244.9.0/24", "lan0", "10.55.0.1", "", true))
	s.refuse(r("10.244.8.0/24", s.wg, "10.4.0.9", "", false))
	s.apply(r("10.244.8.0/24", s.wg, "10.4.0.9", "", true))
	s.refuse(r("10.244.7.0/24", s.wg, "", "10.0.0.99", false))
	s.refuse(r("10.244.7.0/24", "lan0", "10.0.0.1", "", true))
	s.refuse(r("fd00:7::/64", "nosuch", "", "", false), "nosuch")
	s.refuse(r("fd00:7::/64", "lan0", "fd00:55::1", "", false))
	s.apply(r("fd00:7::/64", "lan0", "fd00:55::1", "", true))
	s.refuse(r("fd00:8::/64", s.wg, "", "fd00:10::99", false))
	s.TakeDown("lan0")
	s.refuse(r("10.244.6.0/24", "lan0", "", "", false))
}

func testRules(s *scene) {
	w := s.bare()
	w.Rules = s.rules()
	s.run(w)
	once := s.Everything()
	for _, r := range w.Rules {
		s.apply(state.AddRule{Rule: r}, state.AddRule{Rule: r})
	}
	s.same(s.observe(), w)
	if d := difference(s.Everything(), once); d != "" {
		s.Errorf("rules were added twice:\n%s", d)
	}
	// Rules of one priority that differ in one thing are two.
	w.Rules = append(w.Rules,
		state.Rule{Priority: state.PriorityOverlay, Mark: state.Mark, Table: state.TableOverlay},
		state.Rule{Priority: state.PriorityOverlay, Invert: true, Mark: state.Mark + 1, Table: state.TableOverlay},
		state.Rule{Priority: state.PriorityOverlay, Invert: true, Mark: state.Mark, Table: state.TableReturn},
		state.Rule{Priority: state.PriorityReturn, IIF: "nosuch", Table: state.TableReturn},
		state.Rule{Priority: state.PriorityTunnel, Proto: "udp", SrcPort: 51821, Table: state.TableMain},
		state.Rule{Priority: state.PriorityTunnel, Proto: "udp", SrcPort: 51821, DstPort: 51821, Table: state.TableMain},
		state.Rule{Priority: state.PriorityTunnel, From: netip.MustParseAddr("198.51.100.1"), Proto: "tcp", SrcPort: 6443, Table: state.TableMain},
		state.Rule{Priority: state.PriorityTunnel, From: netip.MustParseAddr("198.51.100.2"), Proto: "tcp", SrcPort: 6443, Table: state.TableMain},
		state.Rule{Priority: state.PriorityTunnel, V6: true, From: netip.MustParseAddr("2001:db8::1"), Proto: "tcp", SrcPort: 6443, Table: state.TableMain},
	)
	s.run(w)
	s.rest(w)
	for _, r := range s.rules() {
		s.apply(state.DeleteRule{Rule: r}, state.DeleteRule{Rule: r})
	}
	w.Rules = w.Rules[len(s.rules()):]
	s.same(s.observe(), w)
	s.run(s.bare())
}
