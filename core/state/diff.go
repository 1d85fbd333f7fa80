package state

import "slices"

// phase is a step's place in the order of Changes. Additions come from the
// ground up, so that each finds what it stands on and no packet finds a way
// out before what would stop it; removals go the other way, after every
// addition, so that nothing is cut that has another way.
type phase int

const (
	// The guard drops what has no tunnel yet, whatever routes say.
	setFilter phase = iota
	// Exceptions stand before what they except from.
	setThrows
	// What has no route into the tunnel yet is refused, not sent in clear.
	setUnreachables
	setLinks
	// The other side's packets are accepted before ours are sent there.
	setPeers
	setRoutes
	// A rule opens a table when the table is complete; WireGuard's own packets
	// (105) are let out before the overlay catches any (107).
	addRules

	// Ways out that no route takes any more.
	closeWays
	deleteRules
	deleteRoutes
	// Allowed IPs that nobody has any more: only ReplaceAllowedIPs removes them.
	shrinkPeers
	deletePeers
	deleteLinks
	deleteUnreachables
	deleteThrows
	// The guard is the last to go.
	deleteFilter

	phases
)

// differ collects Changes by phase.
type differ struct {
	steps [phases][]Change
	// aftermaths are what the kernel itself does to observed routes while the
	// Changes to links are made.
	aftermaths []aftermath
}

// aftermath may alter an observed route; false: the route vanishes.
type aftermath func(r *Route) (stays bool)

// Diff returns the Changes that turn observed into wanted, in the order in
// which they must be made; none when nothing is to be done. It is pure and
// takes States in any order.
//
// It is lopsided on purpose: a wanted Peer without an Endpoint equals any
// observed one, and an endpoint from which a peer is Alive is never written
// over. Name is not compared.
func Diff(observed, wanted State) []Change {
	observed.Normalize()
	wanted.Normalize()
	var d differ
	d.filter(&observed.Filter, &wanted.Filter)
	d.links(observed.Links, wanted.Links)
	d.routes(observed.Routes, wanted.Routes)
	d.rules(observed.Rules, wanted.Rules)
	return slices.Concat(d.steps[:]...)
}

func (d *differ) add(p phase, c Change) { d.steps[p] = append(d.steps[p], c) }

func (d *differ) filter(observed, wanted *Filter) {
	switch {
	case sameFilter(observed, wanted):
	case wanted.IsEmpty():
		d.add(deleteFilter, SetFilter{})
	default:
		first, more := withWays(observed, wanted)
		d.add(setFilter, SetFilter{Filter: first})
		if more {
			d.add(closeWays, SetFilter{Filter: *wanted})
		}
	}
}

// withWays returns wanted with what observed accepts by its next hop besides, and
// whether there is any. Routes still lead there when the filter changes: without it
// what they lead would be dropped until they change too.
func withWays(observed, wanted *Filter) (first Filter, more bool) {
	first = *wanted
	for i := range wanted.Chains {
		c := &wanted.Chains[i]
		at := slices.IndexFunc(observed.Chains, func(o Chain) bool { return o.Name == c.Name && o.Hook == c.Hook })
		if at < 0 {
			continue
		}
		var ways []FilterRule
		for _, r := range observed.Chains[at].Rules {
			if isWay(r) && !slices.ContainsFunc(c.Rules, func(w FilterRule) bool { return sameFilterRule(w, r) }) {
				ways = append(ways, r)
			}
		}
		if len(ways) == 0 {
			continue
		}
		if !more {
			first.Chains, more = slices.Clone(wanted.Chains), true
		}
		first.Chains[i].Rules = append(ways, c.Rules...)
	}
	return first, more
}

// isWay tells whether a rule accepts what leaves by a device for a next hop, and
// looks at nothing else.
func isWay(r FilterRule) bool {
	if _, accepts := r.Action.(Accept); !accepts || len(r.Matches) != 2 {
		return false
	}
	out, ok := r.Matches[0].(OutInterface)
	hop, ok2 := r.Matches[1].(NextHop)
	return ok && ok2 && !out.Not && !hop.Not
}

func (d *differ) routes(observed, wanted []Route) {
	if d.aftermaths != nil {
		observed = d.after(observed)
	}
	walk(observed, wanted, compareRoutes, equal, func(o, w *Route) {
		switch {
		case w != nil:
			d.add(routePhases(w.Type).set, SetRoute{Route: *w})
		default:
			d.add(routePhases(o.Type).delete, DeleteRoute{Route: *o})
		}
	})
}

// after returns the routes as they will be when the links are what is wanted.
func (d *differ) after(observed []Route) []Route {
	left := make([]Route, 0, len(observed))
	for _, r := range observed {
		stays := true
		for _, a := range d.aftermaths {
			stays = stays && a(&r)
		}
		if stays {
			left = append(left, r)
		}
	}
	return left
}

func routePhases(t RouteType) (p struct{ set, delete phase }) {
	switch t {
	case Throw, Local:
		p.set, p.delete = setThrows, deleteThrows
	case Unreachable:
		p.set, p.delete = setUnreachables, deleteUnreachables
	default:
		p.set, p.delete = setRoutes, deleteRoutes
	}
	return p
}

func (d *differ) rules(observed, wanted []Rule) {
	walk(observed, wanted, compareRules, equal, func(o, w *Rule) {
		if w != nil {
			d.add(addRules, AddRule{Rule: *w})
		} else {
			d.add(deleteRules, DeleteRule{Rule: *o})
		}
	})
	// Sorted by priority they were added; they go the other way.
	slices.Reverse(d.steps[deleteRules])
}

// walk goes through two sorted slices side by side and calls differ for what
// only a has (b is nil then), what only b has (a is nil), and what both have
// but not the same.
func walk[T any](a, b []T, compare func(a, b *T) int, same func(a, b *T) bool, differ func(a, b *T)) {
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		// Most of what is compared is equal: ask that first.
		if same(&a[i], &b[j]) {
			i, j = i+1, j+1
			continue
		}
		switch c := compare(&a[i], &b[j]); {
		case c < 0:
			differ(&a[i], nil)
			i++
		case c > 0:
			differ(nil, &b[j])
			j++
		default:
			differ(&a[i], &b[j])
			i, j = i+1, j+1
		}
	}
	for ; i < len(a); i++ {
		differ(&a[i], nil)
	}
	for ; j < len(b); j++ {
		differ(nil, &b[j])
	}
}
