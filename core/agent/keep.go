package agent

import (
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// keep returns wanted together with everything that observed holds beside it,
// so that applying it adds and mends but removes nothing.
//
// An agent that has just started knows less than the one that left this data
// path behind. Until all it depends on has reported (the API server, the host
// CNI, its own Node), what is missing from its plan proves nothing.
func keep(observed, wanted state.State) state.State {
	observed.Normalize()
	wanted.Normalize()
	out := state.State{
		Links:  slices.Clone(wanted.Links),
		Routes: slices.Clone(wanted.Routes),
		Rules:  slices.Clone(wanted.Rules),
		Filter: keepFilter(observed.Filter, wanted.Filter),
	}
	for _, o := range observed.Links {
		i := slices.IndexFunc(out.Links, func(l state.Link) bool { return l.Name == o.Name })
		if i < 0 {
			out.Links = append(out.Links, o)
			continue
		}
		out.Links[i] = keepLink(o, out.Links[i])
	}
	type id struct {
		table  int
		dst    netip.Prefix
		metric uint32
	}
	there := make(map[id]bool, len(out.Routes))
	for _, r := range out.Routes {
		there[id{r.Table, r.Dst, r.Metric}] = true
	}
	for _, o := range observed.Routes {
		if !there[id{o.Table, o.Dst, o.Metric}] {
			out.Routes = append(out.Routes, o)
		}
	}
	for _, o := range observed.Rules {
		if !slices.Contains(out.Rules, o) {
			out.Rules = append(out.Rules, o)
		}
	}
	return out
}

func keepLink(observed, wanted state.Link) state.Link {
	out := wanted
	out.Addresses = union(wanted.Addresses, observed.Addresses)
	if wanted.Tunnel != nil && observed.Tunnel != nil {
		t := *wanted.Tunnel
		t.Peers = slices.Clone(t.Peers)
		// A prefix belongs to one peer: what a wanted peer has is nobody else's.
		taken := map[netip.Prefix]bool{}
		for _, p := range t.Peers {
			for _, a := range p.AllowedIPs {
				taken[a] = true
			}
		}
		free := func(ps []netip.Prefix) (out []netip.Prefix) {
			for _, p := range ps {
				if !taken[p] {
					out = append(out, p)
				}
			}
			return out
		}
		for _, o := range observed.Tunnel.Peers {
			if i := slices.IndexFunc(t.Peers, func(p state.Peer) bool { return p.Key == o.Key }); i >= 0 {
				t.Peers[i].AllowedIPs = append(slices.Clone(t.Peers[i].AllowedIPs), free(o.AllowedIPs)...)
				continue
			}
			o.AllowedIPs = free(o.AllowedIPs)
			o.Endpoint = netip.AddrPort{} // whatever it has
			t.Peers = append(t.Peers, o)
		}
		out.Tunnel = &t
	}
	if wanted.VXLAN != nil && observed.VXLAN != nil {
		v := *wanted.VXLAN
		v.Remotes = slices.Clone(v.Remotes)
		for _, o := range observed.VXLAN.Remotes {
			if !slices.ContainsFunc(v.Remotes, func(r state.VXLANRemote) bool { return r.Inner == o.Inner || r.MAC == o.MAC }) {
				v.Remotes = append(v.Remotes, o)
			}
		}
		out.VXLAN = &v
	}
	return out
}

// passes are what the guard lets pass and wanted lacks. The ways to the gateway
// among them come from the host CNI, and the routes that take them are kept:
// without the pass they would lead into the guard's drop.
func passes(observed, wanted []state.FilterRule) (out []state.FilterRule) {
	there := make(map[string]bool, len(wanted))
	for _, r := range wanted {
		there[r.String()] = true
	}
	for _, r := range observed {
		if _, accepts := r.Action.(state.Accept); accepts && !there[r.String()] {
			out = append(out, r)
		}
	}
	return out
}

// keepFilter takes the wanted rules over sets that hold what either side has.
// A set that only observed has keeps its rules, behind the wanted ones: so the
// guard, which drops last, stays over everything that was known to be remote.
func keepFilter(observed, wanted state.Filter) state.Filter {
	if wanted.IsEmpty() {
		return observed
	}
	var out state.Filter
	for _, s := range wanted.Sets {
		if i := indexSet(observed.Sets, s.Name); i >= 0 && observed.Sets[i].V6 == s.V6 {
			s.Elements = union(s.Elements, observed.Sets[i].Elements)
		}
		out.Sets = append(out.Sets, s)
	}
	lost := map[string]bool{}
	for _, s := range observed.Sets {
		if indexSet(wanted.Sets, s.Name) < 0 {
			out.Sets = append(out.Sets, s)
			lost[s.Name] = true
		}
	}
	for _, c := range wanted.Chains {
		if i := slices.IndexFunc(observed.Chains, func(o state.Chain) bool { return o.Name == c.Name }); i >= 0 {
			c.Rules = slices.Clone(c.Rules)
			if c.Name == plan.GuardChain {
				// Behind the other accepts, where they stood: what is the same in
				// the same order is not written again.
				at := slices.IndexFunc(c.Rules, func(r state.FilterRule) bool { _, accepts := r.Action.(state.Accept); return !accepts })
				if at < 0 {
					at = len(c.Rules)
				}
				c.Rules = slices.Insert(c.Rules, at, passes(observed.Chains[i].Rules, c.Rules)...)
			}
			for _, r := range observed.Chains[i].Rules {
				if slices.ContainsFunc(r.Matches, func(m state.Match) bool { in, ok := m.(state.AddrInSet); return ok && lost[in.Set] }) {
					c.Rules = append(c.Rules, r)
				}
			}
		}
		out.Chains = append(out.Chains, c)
	}
	return out
}

func indexSet(sets []state.Set, name string) int {
	return slices.IndexFunc(sets, func(s state.Set) bool { return s.Name == name })
}

// union returns the prefixes of a and b, sorted, each once.
func union(a, b []netip.Prefix) []netip.Prefix {
	out := slices.Concat(a, b)
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
