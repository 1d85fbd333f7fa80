package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Normalize brings s into its one form: everything sorted, prefixes masked,
// duplicates gone, elements of a set free of overlaps. Two States that the
// kernel cannot tell apart are then equal, but for what wanted States leave
// open; see Diff. The order of rules within a chain has a meaning and stays.
//
// What must change is copied first, so slices that s shares with another State
// stay as they are; what is normal already costs no allocation worth naming.
func (s *State) Normalize() {
	s.Links = normalLinks(s.Links)
	s.Routes = normalRoutes(s.Routes)
	s.Rules = inOrder(s.Rules, compareRules, equal)
	s.Filter.normalize()
}

func normalLinks(links []Link) []Link {
	links = slices.Clone(inOrder(links, func(a, b *Link) int { return cmp.Compare(a.Name, b.Name) }, nil))
	for i := range links {
		l := &links[i]
		l.Addresses = inOrder(l.Addresses, comparePrefixes, equal)
		if l.Tunnel != nil {
			t := *l.Tunnel
			t.Peers = normalPeers(t.Peers)
			l.Tunnel = &t
		}
		if l.VXLAN != nil {
			v := *l.VXLAN
			v.MAC = strings.ToLower(v.MAC)
			v.Remotes = slices.Clone(inOrder(v.Remotes, compareRemotes, equal))
			for i := range v.Remotes {
				v.Remotes[i].MAC = strings.ToLower(v.Remotes[i].MAC)
			}
			l.VXLAN = &v
		}
	}
	return links
}

func normalPeers(peers []Peer) []Peer {
	peers = slices.Clone(inOrder(peers, comparePeers, nil))
	for i := range peers {
		p := &peers[i]
		p.AllowedIPs = normalPrefixes(p.AllowedIPs)
		if p.Endpoint.Addr().Is4In6() {
			p.Endpoint = netip.AddrPortFrom(p.Endpoint.Addr().Unmap(), p.Endpoint.Port())
		}
		p.Keepalive = p.Keepalive.Truncate(time.Second)
	}
	return peers
}

// defaultMetric6 is what the kernel makes of an IPv6 route's metric 0
// (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024

func normalRoutes(routes []Route) []Route {
	normal := func(r *Route) Route {
		n := *r
		n.Dst = n.Dst.Masked()
		if n.Metric == 0 && n.Dst.Addr().Is6() {
			n.Metric = defaultMetric6
		}
		return n
	}
	for i := range routes {
		if r := &routes[i]; !isMasked(r.Dst) || r.Metric == 0 && r.Dst.Addr().Is6() {
			routes = slices.Clone(routes)
			for i := range routes {
				routes[i] = normal(&routes[i])
			}
			break
		}
	}
	return inOrder(routes, compareRoutes, equal)
}

// isMasked tells whether p is p.Masked(), in a fraction of the time: at ten
// thousand nodes a pass asks a hundred thousand times.
func isMasked(p netip.Prefix) bool {
	if !p.IsValid() || !p.Addr().Is4() {
		return p == p.Masked()
	}
	a := p.Addr().As4()
	return binary.BigEndian.Uint32(a[:])<<p.Bits() == 0
}

// normalPrefixes masks and sorts.
func normalPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	for _, p := range prefixes {
		if !isMasked(p) {
			prefixes = slices.Clone(prefixes)
			for i, p := range prefixes {
				prefixes[i] = p.Masked()
			}
			break
		}
	}
	return inOrder(prefixes, comparePrefixes, equal)
}

// withoutOverlaps drops what lies within another. An enclosing prefix sorts
// before what it encloses, and everything between the two lies in it as well.
func withoutOverlaps(sorted []netip.Prefix) []netip.Prefix {
	within := func(outer, p netip.Prefix) bool { return outer.Bits() <= p.Bits() && outer.Contains(p.Addr()) }
	for i := 1; i < len(sorted); i++ {
		if !within(sorted[i-1], sorted[i]) {
			continue
		}
		kept := slices.Clone(sorted[:i])
		for _, p := range sorted[i:] {
			if !within(kept[len(kept)-1], p) {
				kept = append(kept, p)
			}
		}
		return kept
	}
	return sorted
}

func (f *Filter) normalize() {
	f.Sets = slices.Clone(inOrder(f.Sets, func(a, b *Set) int { return cmp.Compare(a.Name, b.Name) }, nil))
	for i := range f.Sets {
		f.Sets[i].Elements = withoutOverlaps(normalPrefixes(f.Sets[i].Elements))
	}
	f.Chains = slices.Clone(inOrder(f.Chains, func(a, b *Chain) int { return cmp.Compare(a.Name, b.Name) }, nil))
	for i := range f.Chains {
		f.Chains[i].Rules = slices.Clone(f.Chains[i].Rules)
		for j := range f.Chains[i].Rules {
			r := &f.Chains[i].Rules[j]
			r.Matches = normalMatches(r.Matches)
		}
	}
}

func normalMatches(matches []Match) []Match {
	copied := false
	set := func(i int, m Match) {
		if !copied {
			matches, copied = slices.Clone(matches), true
		}
		matches[i] = m
	}
	for i, m := range matches {
		switch m := m.(type) {
		case AddrIs:
			if m.Prefix != m.Prefix.Masked() {
				m.Prefix = m.Prefix.Masked()
				set(i, m)
			}
		case CtState:
			if states := orderCtStates(m.States); !slices.Equal(states, m.States) {
				set(i, CtState{States: states})
			}
		}
	}
	return matches
}

// orderCtStates sorts conntrack states as nft prints them, which is the order
// of the kernel's bits.
func orderCtStates(states []string) []string {
	bit := func(s string) int {
		return slices.Index([]string{"invalid", "established", "related", "new", "untracked"}, s)
	}
	states = slices.Clone(states)
	slices.SortFunc(states, func(a, b string) int { return cmp.Compare(bit(a), bit(b)) })
	return slices.Compact(states)
}

// comparePrefixes orders masked prefixes as netip.Prefix.Compare does, IPv4
// first, an enclosing prefix before what it encloses; not masking again, it is
// several times as fast. Addresses with host bits get some fixed order too.
func comparePrefixes(a, b *netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Bits(), b.Bits())
}

func comparePeers(a, b *Peer) int { return bytes.Compare(a.Key[:], b.Key[:]) }

func compareRemotes(a, b *VXLANRemote) int {
	return cmp.Or(a.Inner.Compare(b.Inner), cmp.Compare(a.MAC, b.MAC), a.Outer.Compare(b.Outer))
}

// compareRoutes goes by what identifies a route.
func compareRoutes(a, b *Route) int {
	if c := cmp.Compare(a.Table, b.Table); c != 0 {
		return c
	}
	if c := comparePrefixes(&a.Dst, &b.Dst); c != 0 {
		return c
	}
	return cmp.Compare(a.Metric, b.Metric)
}

// compareRules goes by all fields, priority first: all of them identify a rule.
func compareRules(a, b *Rule) int {
	return cmp.Or(
		cmp.Compare(a.Priority, b.Priority),
		compareBools(a.V6, b.V6),
		compareBools(a.Invert, b.Invert),
		cmp.Compare(a.Mark, b.Mark),
		a.From.Compare(b.From),
		cmp.Compare(a.IIF, b.IIF),
		cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.SrcPort, b.SrcPort),
		cmp.Compare(a.DstPort, b.DstPort),
		cmp.Compare(a.Table, b.Table),
	)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
