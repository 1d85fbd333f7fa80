package state_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// walk goes from one random State to the next, one Change at a time, on a
// kernel in memory. What holds before, at and after every step is up to look.
func walk(t *testing.T, look func(t *testing.T, from, to state.State, made []state.Change, now state.State)) {
	key := model.Key{1, 2, 3}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		k := kerneltest.New("kilo0", key)
		k.AddLink("lan0", prefixes("10.0.0.1/24", "fd00:10::1/64")...)
		for range 12 {
			from, err := k.Observe(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			to := kerneltest.Random(r, "kilo0", key)
			if r.IntN(8) == 0 {
				to = state.State{}
			}
			to.Normalize()
			var made []state.Change
			look(t, from, to, made, from)
			for _, c := range state.Diff(from, to) {
				if err := k.Apply(context.Background(), c); err != nil {
					t.Fatalf("seed %d: %s: %v", seed, c, err)
				}
				now, err := k.Observe(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				made = append(made, c)
				look(t, from, to, made, now)
				if t.Failed() {
					t.Fatalf("seed %d, after:\n%s\nfrom:\n%s\nto:\n%s\nnow:\n%s", seed, texts(made), from, to, now)
				}
			}
			now, _ := k.Observe(context.Background())
			if d := state.Diff(now, to); d != nil {
				t.Fatalf("seed %d: still to do: %v", seed, d)
			}
			// Diff is not to be believed alone.
			if got, want := essence(now, to), essence(to, to); got != want {
				t.Fatalf("seed %d: got:\n%s\nwant:\n%s", seed, got, want)
			}
			if d := state.Diff(to, to); d != nil {
				t.Fatalf("seed %d: to itself: %v", seed, d)
			}
		}
	}
}

func texts(changes []state.Change) (s string) {
	for _, c := range changes {
		s += c.String() + "\n"
	}
	return s
}

// essence is a State's text without names, and without endpoints where the
// wanted State leaves them open.
func essence(s, wanted state.State) string {
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
		if s.Links[i].Tunnel == nil {
			continue
		}
		tunnel := *s.Links[i].Tunnel
		tunnel.Peers = slices.Clone(tunnel.Peers)
		for j := range tunnel.Peers {
			p := &tunnel.Peers[j]
			p.Name = ""
			if open[p.Key] {
				p.Endpoint = netip.AddrPort{}
			}
		}
		s.Links[i].Tunnel = &tunnel
	}
	return s.String()
}

// Whatever the two States are, applying their Diff leads from one to the
// other, and on no step of the way is anything cut that both have.
func TestNothingIsCutOnTheWay(t *testing.T) {
	walk(t, func(t *testing.T, from, to state.State, made []state.Change, now state.State) {
		// A destination with an unreachable before and after always has one.
		for _, r := range from.Routes {
			if r.Type == state.Unreachable && slices.Contains(to.Routes, r) && !slices.Contains(now.Routes, r) {
				t.Errorf("gap in %s", r)
			}
		}
		// A way before and after, whichever it is, is always there, unless its
		// link has to be made anew or loses its addresses.
		for _, r := range from.Routes {
			if r.Type == state.Unicast && !disturbed(from, to, r.Device) && hasWay(to, r) && !hasWay(now, r) {
				t.Errorf("gap in %s", r)
			}
		}
		// A prefix that some peer has before and after is always somebody's.
		for prefix := range allowed(from) {
			if allowed(to)[prefix] && !allowed(now)[prefix] {
				t.Errorf("no peer has %s", prefix)
			}
		}
		// A rule before and after is always there.
		for _, r := range from.Rules {
			if slices.Contains(to.Rules, r) && !slices.Contains(now.Rules, r) {
				t.Errorf("gap in %s", r)
			}
		}
		if !from.Filter.IsEmpty() && !to.Filter.IsEmpty() && now.Filter.IsEmpty() {
			t.Error("no filter")
		}
		// A way out that the filter accepts is open until no route takes it.
		if slices.ContainsFunc(to.Routes, func(r state.Route) bool { return !slices.Contains(now.Routes, r) }) {
			for _, c := range to.Filter.Chains {
				for way := range ways(chainOf(from.Filter, c)) {
					if !ways(chainOf(now.Filter, c))[way] {
						t.Errorf("chain %s: gap in %s", c.Name, way)
					}
				}
			}
		}
	})
}

// chainOf is f's chain of the same name and hook.
func chainOf(f state.Filter, like state.Chain) state.Chain {
	for _, c := range f.Chains {
		if c.Name == like.Name && c.Hook == like.Hook {
			return c
		}
	}
	return state.Chain{}
}

// ways are the rules that accept a device and next hop.
func ways(c state.Chain) map[string]bool {
	out := map[string]bool{}
	for _, r := range c.Rules {
		if text := r.String(); strings.HasPrefix(text, "oifname \"") && strings.Contains(text, " nexthop ") &&
			!strings.Contains(text, "nexthop !=") && len(r.Matches) == 2 && r.Action == state.Action(state.Accept{}) {
			out[text] = true
		}
	}
	return out
}

// withoutOldWays is now's text without the ways that only from has.
func withoutOldWays(now, from, to state.Filter) string {
	now.Chains = slices.Clone(now.Chains)
	for i, c := range now.Chains {
		now.Chains[i].Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(r state.FilterRule) bool {
			text := r.String()
			return ways(chainOf(from, c))[text] && !ways(chainOf(to, c))[text]
		})
	}
	return now.String()
}

// disturbed tells whether the kernel itself takes routes of a link on the way.
func disturbed(from, to state.State, device string) bool {
	link := func(s state.State) *state.Link {
		for i := range s.Links {
			if s.Links[i].Name == device {
				return &s.Links[i]
			}
		}
		return nil
	}
	a, b := link(from), link(to)
	if a == nil || b == nil {
		return device != "lan0"
	}
	if a.VXLAN != nil && (a.VXLAN.ID != b.VXLAN.ID || a.VXLAN.Port != b.VXLAN.Port) {
		return true
	}
	is4 := func(p netip.Prefix) bool { return p.Addr().Is4() }
	return slices.ContainsFunc(a.Addresses, is4) && !slices.ContainsFunc(b.Addresses, is4)
}

// hasWay tells whether there is a way in r's place.
func hasWay(s state.State, r state.Route) bool {
	return slices.ContainsFunc(s.Routes, func(is state.Route) bool {
		return is.Table == r.Table && is.Dst == r.Dst && is.Metric == r.Metric && is.Type == state.Unicast
	})
}

func allowed(s state.State) map[netip.Prefix]bool {
	m := map[netip.Prefix]bool{}
	for _, l := range s.Links {
		if l.Tunnel != nil {
			for _, p := range l.Tunnel.Peers {
				for _, a := range p.AllowedIPs {
					m[a] = true
				}
			}
		}
	}
	return m
}

// A table is opened by a rule only while what must be in it is in it, and the
// guard and the unreachables are there before any way into the tunnel.
func TestNothingIsOpenedBeforeItIsReady(t *testing.T) {
	walk(t, func(t *testing.T, from, to state.State, made []state.Change, now state.State) {
		if len(made) == 0 {
			return
		}
		switch c := made[len(made)-1].(type) {
		case state.AddRule:
			for _, r := range to.Routes {
				if !slices.Contains(now.Routes, r) {
					t.Errorf("%s came before %s", c, r)
				}
			}
			for _, r := range to.Rules {
				if r.Priority < c.Rule.Priority && !slices.Contains(now.Rules, r) {
					t.Errorf("%s came before %s", c, r)
				}
			}
		case state.SetRoute:
			if c.Route.Type != state.Unicast {
				return
			}
			for _, r := range to.Routes {
				if r.Type != state.Unicast && !slices.Contains(now.Routes, r) {
					t.Errorf("%s came before %s", c, r)
				}
			}
			if !to.Filter.IsEmpty() && withoutOldWays(now.Filter, from.Filter, to.Filter) != to.Filter.String() {
				t.Errorf("%s came before the filter", c)
			}
		case state.DeleteRoute:
			for _, r := range now.Rules {
				if !slices.Contains(to.Rules, r) {
					t.Errorf("%s went before %s", c, r)
				}
			}
			if c.Route.Type == state.Unicast {
				return
			}
			for _, r := range now.Routes {
				if r.Type == state.Unicast && !slices.Contains(to.Routes, r) {
					t.Errorf("%s went before %s", c, r)
				}
			}
		case state.DeletePeer:
			for _, r := range now.Routes {
				if r.Type == state.Unicast && !slices.Contains(to.Routes, r) {
					t.Errorf("%s went before %s", c, r)
				}
			}
		}
		if !from.Filter.IsEmpty() && now.Filter.IsEmpty() && state.Diff(now, to) != nil {
			t.Error("the filter did not go last")
		}
	})
}

// No Change that adds comes after one that removes, but for a link that is
// made anew.
func TestAllIsAddedBeforeAnythingIsRemoved(t *testing.T) {
	walk(t, func(t *testing.T, _, _ state.State, made []state.Change, _ state.State) {
		if len(made) < 2 {
			return
		}
		last, before := made[len(made)-1], made[len(made)-2]
		if del, ok := before.(state.DeleteLink); ok {
			if set, ok := last.(state.SetLink); ok && set.Link.Name == del.Name {
				return
			}
		}
		if removes(before) && !removes(last) {
			t.Errorf("%s comes after %s", last, before)
		}
	})
}

func removes(c state.Change) bool {
	switch c := c.(type) {
	case state.DeleteLink, state.DeletePeer, state.DeleteRoute, state.DeleteRule:
		return true
	case state.SetPeer:
		return c.ReplaceAllowedIPs
	case state.SetFilter:
		return c.Filter.IsEmpty()
	}
	return false
}
