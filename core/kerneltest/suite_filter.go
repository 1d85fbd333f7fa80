package kerneltest

import (
	"net/netip"
	"strings"

	"github.com/kilo-overlay/kilo/core/state"
)

// sameFilterText compares what nft prints with the text of a Filter, white
// space aside.
func (s *scene) sameFilterText(f state.Filter) {
	s.Helper()
	lines := func(text string) string {
		// A list of elements is broken into lines differently.
		text = strings.Join(strings.Fields(text), " ")
		return strings.NewReplacer("{ ", "{\n", "; ", ";\n", " }", "\n}\n", ", ", ",\n").Replace(text) + "\n"
	}
	got, want := s.FilterText(), f.String()
	if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		s.Errorf("nft prints (+), the Filter prints (-):\n%s\nin full:\n%s", difference(lines(got), lines(want)), got)
	}
}

func testFilterText(s *scene) {
	w := s.bare()
	w.Filter = Vocabulary(s.wg)
	s.run(w)
	s.sameFilterText(w.Filter)

	// Well-known priorities have names.
	w.Filter = state.Filter{}
	for name, p := range map[string]struct {
		hook     string
		priority int
	}{
		"a": {"prerouting", -300}, "b": {"prerouting", -101}, "c": {"prerouting", -90}, "d": {"prerouting", 100},
		"e": {"output", -100}, "f": {"output", 0}, "g": {"output", 10}, "h": {"output", 11}, "i": {"output", 50},
		"j": {"postrouting", 89}, "k": {"postrouting", 90}, "l": {"postrouting", 100}, "m": {"postrouting", 110},
		"n": {"forward", -160}, "o": {"forward", -140}, "p": {"forward", 300}, "q": {"input", 45},
	} {
		w.Filter.Chains = append(w.Filter.Chains, state.Chain{Name: name, Type: state.FilterChain, Hook: p.hook, Priority: p.priority})
	}
	w.Normalize()
	s.run(w)
	s.sameFilterText(w.Filter)
}

func testFilterWhole(s *scene) {
	w := s.bare()
	w.Filter = Vocabulary(s.wg)
	s.run(w)
	before := s.FilterText()

	// What nftables refuses changes nothing.
	refuse := func(mistake func(f *state.Filter)) {
		s.Helper()
		f := Vocabulary(s.wg)
		mistake(&f)
		s.refuse(state.SetFilter{Filter: f})
		if d := difference(s.FilterText(), before); d != "" {
			s.Errorf("a table that was refused has left:\n%s", d)
		}
	}
	addRule := func(chain int, a state.Action, m ...state.Match) func(*state.Filter) {
		return func(f *state.Filter) {
			c := &f.Chains[chain]
			c.Rules = append(c.Rules, state.FilterRule{Action: a, Matches: m})
		}
	}
	const clamp, guard, input, source = 0, 1, 2, 3
	refuse(addRule(guard, state.SourceNAT{To: addr("10.0.0.1")}))
	refuse(addRule(input, state.Masquerade{}))
	refuse(addRule(clamp, state.KeepSource{}))
	refuse(addRule(input, state.ClampMSS{}, state.TCPSyn{}))
	refuse(addRule(guard, state.ResetTCP{}, state.L4Proto{Proto: "tcp"}))
	refuse(addRule(source, state.ResetTCP{}, state.L4Proto{Proto: "tcp"}))
	refuse(addRule(guard, state.Drop{}, state.AddrInSet{Set: "nosuch"}))
	refuse(func(f *state.Filter) { f.Chains[source].Hook = "forward" })
	refuse(func(f *state.Filter) { f.Chains[source].Priority = -200 })

	// Elements that overlap are refused, or else hold what they mean.
	f := Vocabulary(s.wg)
	f.Sets[2].Elements = []netip.Prefix{prefix("10.0.0.0/8"), prefix("10.1.0.0/16")}
	if err := s.Apply(s.ctx, state.SetFilter{Filter: f}); err == nil {
		w.Filter = f
		s.same(s.observe(), w)
	} else if d := difference(s.FilterText(), before); d != "" {
		s.Errorf("a table that was refused has left:\n%s", d)
	}

	// Larger, smaller, gone; and gone is gone.
	w.Filter = Vocabulary(s.wg)
	w.Filter.Sets[1].Elements = []netip.Prefix{prefix("10.7.0.0/16")}
	s.run(w)
	w.Filter.Sets[2].Elements = w.Filter.Sets[2].Elements[2:4]
	w.Filter.Chains = w.Filter.Chains[1:]
	s.run(w)
	s.sameFilterText(w.Filter)

	// Somebody flushes the guard: seen and mended.
	s.FlushChain("guard")
	if found := s.observe(); strings.Contains(found.Filter.String(), "WireGuard's own packets") {
		s.Errorf("the guard was flushed, and is seen as whole:\n%s", found.Filter)
	}
	s.run(w)
	s.sameFilterText(w.Filter)

	s.apply(state.SetFilter{}, state.SetFilter{})
	s.same(s.observe(), s.bare())
	s.run(w)
}
