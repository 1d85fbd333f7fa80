package kerneltest

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/kilo-overlay/kilo/core/state"
)

// maxComment is how many bytes of comment fit a rule's user data.
const maxComment = 128

// setFilter replaces the table, or leaves it as it was.
func (k *Kernel) setFilter(f state.Filter) error {
	if err := checkFilter(f); err != nil {
		return fmt.Errorf("table inet %s: %w", state.FilterTable, err)
	}
	k.filter = f
	return nil
}

// checkFilter refuses what nftables refuses.
func checkFilter(f state.Filter) error {
	sets := map[string]state.Set{}
	for _, s := range f.Sets {
		if _, ok := sets[s.Name]; ok {
			return fmt.Errorf("set %s: %w", s.Name, syscall.EEXIST)
		}
		sets[s.Name] = s
		if err := checkElements(s); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	chains := map[string]bool{}
	for _, c := range f.Chains {
		if chains[c.Name] {
			return fmt.Errorf("chain %s: %w", c.Name, syscall.EEXIST)
		}
		chains[c.Name] = true
		if err := checkChain(c); err != nil {
			return fmt.Errorf("chain %s: %w", c.Name, err)
		}
		for _, r := range c.Rules {
			if err := checkRule(c, r, sets); err != nil {
				return fmt.Errorf("chain %s: %s: %w", c.Name, r, err)
			}
		}
	}
	return nil
}

func checkElements(s state.Set) error {
	elements := slices.Clone(s.Elements)
	slices.SortFunc(elements, netip.Prefix.Compare)
	for i, e := range elements {
		switch {
		case e.Addr().Is4() == s.V6:
			return fmt.Errorf("%s is not of the set's family: %w", e, syscall.EINVAL)
		case e != e.Masked():
			return fmt.Errorf("%s has bits beyond its length: %w", e, syscall.EINVAL)
		case i > 0 && elements[i-1].Overlaps(e):
			return fmt.Errorf("%s and %s: conflicting intervals: %w", elements[i-1], e, syscall.EEXIST)
		}
	}
	return nil
}

func checkChain(c state.Chain) error {
	hooks := []string{"prerouting", "input", "forward", "output", "postrouting"}
	switch c.Type {
	case state.FilterChain:
	case state.NATChain:
		hooks = []string{"prerouting", "input", "output", "postrouting"}
		// NAT needs conntrack to have looked first (-200).
		if c.Priority <= -200 {
			return fmt.Errorf("priority %d of a nat chain: %w", c.Priority, syscall.EOPNOTSUPP)
		}
	default:
		return fmt.Errorf("type %q: %w", c.Type, syscall.ENOENT)
	}
	if !slices.Contains(hooks, c.Hook) {
		return fmt.Errorf("hook %q of a %s chain: %w", c.Hook, c.Type, syscall.EOPNOTSUPP)
	}
	return nil
}

func checkRule(c state.Chain, r state.FilterRule, sets map[string]state.Set) error {
	if len(r.Comment) > maxComment {
		return fmt.Errorf("comment of %d bytes: %w", len(r.Comment), syscall.EINVAL)
	}
	for _, m := range r.Matches {
		switch m := m.(type) {
		case state.AddrInSet:
			if s, ok := sets[m.Set]; !ok || s.V6 != m.V6 {
				return fmt.Errorf("no set %s of that family: %w", m.Set, syscall.ENOENT)
			}
		case state.InInterface:
			if m.Name == "" || len(m.Name) > 15 {
				return fmt.Errorf("interface name %q: %w", m.Name, syscall.EINVAL)
			}
		case state.OutInterface:
			if m.Name == "" || len(m.Name) > 15 {
				return fmt.Errorf("interface name %q: %w", m.Name, syscall.EINVAL)
			}
		case state.Unknown:
			return fmt.Errorf("%q: %w", m.Text, syscall.EINVAL)
		}
	}
	type place struct {
		chain state.ChainType
		hook  string
	}
	in := func(places ...place) error {
		if slices.Contains(places, place{c.Type, c.Hook}) {
			return nil
		}
		return fmt.Errorf("not in a %s chain at %s: %w", c.Type, c.Hook, syscall.EOPNOTSUPP)
	}
	const filter, nat = state.FilterChain, state.NATChain
	switch a := r.Action.(type) {
	case state.SourceNAT, state.KeepSource:
		return in(place{nat, "postrouting"}, place{nat, "input"})
	case state.Masquerade:
		return in(place{nat, "postrouting"})
	case state.ResetTCP:
		// Linux would have it in prerouting too; nobody needs that.
		return in(place{filter, "input"}, place{filter, "forward"}, place{filter, "output"})
	case state.ClampMSS:
		return in(place{filter, "forward"}, place{filter, "output"}, place{filter, "postrouting"},
			place{nat, "output"}, place{nat, "postrouting"})
	case state.Unknown:
		return fmt.Errorf("%q: %w", a.Text, syscall.EINVAL)
	case nil:
		return fmt.Errorf("no action: %w", syscall.EINVAL)
	}
	return nil
}
