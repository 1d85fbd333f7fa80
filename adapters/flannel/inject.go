package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Inject implements adapter.Adapter: a member gets routes to other locations,
// the serving gateway the way back to its members. Neither gets anything else.
//
// An error says for which node Flannel has no route yet; the Additions that
// come with it hold for all others.
func (*Adapter) Inject(v adapter.View, f adapter.Facts) (adapter.Additions, error) {
	routes := byPrefix(f.NextHops)
	families := []bool{true} // IPv4
	if doesIPv6(f) {
		// Otherwise nothing of that family has a way, which is no news.
		families = append(families, false)
	}
	switch {
	case v.Serving:
		return returnRoutes(v, routes, families)
	case v.Gateway == nil || v.Gateway.Name == v.Self.Name:
		return adapter.Additions{}, nil
	}
	return overlayRoutes(v, routes, families)
}

// doesIPv6 tells whether Flannel carries IPv6 in this cluster.
func doesIPv6(f adapter.Facts) bool {
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	return slices.ContainsFunc(f.PodPrefixes, is6) || slices.ContainsFunc(f.ClusterPrefixes, is6) ||
		slices.ContainsFunc(f.NextHops, func(h adapter.NextHop) bool { return is6(h.Prefix) })
}

// flannelRoutes are Flannel's own routes in main, sorted by prefix.
type flannelRoutes []adapter.NextHop

func byPrefix(hops []adapter.NextHop) flannelRoutes {
	compare := func(a, b adapter.NextHop) int { return a.Prefix.Compare(b.Prefix) }
	if !slices.IsSortedFunc(hops, compare) {
		hops = slices.SortedStableFunc(slices.Values(hops), compare)
	}
	return hops
}

func (routes flannelRoutes) find(p netip.Prefix) (adapter.NextHop, bool) {
	i, ok := slices.BinarySearchFunc(routes, p, func(h adapter.NextHop, p netip.Prefix) int { return h.Prefix.Compare(p) })
	if !ok {
		return adapter.NextHop{}, false
	}
	return routes[i], true
}

// to returns how Flannel reaches a node's pods with a next hop of one family.
// All pods of a node are behind the same next hop, so any prefix will do; the
// lowest is taken, for the same answer at every call. A node without a pod
// prefix of that family, and one that Flannel has no route to, are errors.
func (routes flannelRoutes) to(n *model.Node, v4 bool) (adapter.NextHop, error) {
	var missing netip.Prefix
	for _, p := range sortedPrefixes(n.PodPrefixes) {
		if p.Addr().Is4() != v4 {
			continue
		}
		h, ok := routes.find(p)
		if ok && h.Via.IsValid() && h.Via.Is4() == v4 && h.Device != "" {
			return h, nil
		}
		if !missing.IsValid() {
			missing = p
		}
	}
	family := "IPv6"
	if v4 {
		family = "IPv4"
	}
	if !missing.IsValid() {
		return adapter.NextHop{}, fmt.Errorf("%s publishes no %s pod prefix", n.Name, family)
	}
	return adapter.NextHop{}, fmt.Errorf("flannel has no route in main to %s, the pods of %s, yet", missing, n.Name)
}

// overlayRoutes leads a member's traffic for other locations to the gateway,
// the way that Flannel reaches the gateway's pods.
func overlayRoutes(v adapter.View, routes flannelRoutes, families []bool) (adapter.Additions, error) {
	var add adapter.Additions
	errs := &multierror.Error{ErrorFormat: oneLine}
	for _, v4 := range families {
		if !hasFamily(v.Remote, v4) {
			continue
		}
		hop, err := routes.to(v.Gateway, v4)
		if err != nil {
			errs = multierror.Append(errs, fmt.Errorf("gateway: %w", err))
			continue
		}
		if add.Routes == nil { // most often all are of one family
			add.Routes = make([]state.Route, 0, len(v.Remote))
		}
		source := v.Self.InternalIP(v4)
		for i := range v.Remote {
			r := &v.Remote[i]
			if r.Prefix.Addr().Is4() != v4 {
				continue
			}
			add.Routes = append(add.Routes, state.Route{
				Table:  state.TableOverlay,
				Dst:    r.Prefix,
				Type:   state.Unicast,
				Via:    hop.Via,
				Device: hop.Device,
				OnLink: hop.OnLink,
				Source: source,
				MTU:    smaller(r.MTU, hop.MTU),
			})
		}
	}
	return add, errs.ErrorOrNil()
}

// returnRoutes leads what comes out of the tunnel for a member's own address
// to the member the way that its traffic comes: through Flannel. Pods need no
// such route, Flannel's own one in main does it.
func returnRoutes(v adapter.View, routes flannelRoutes, families []bool) (adapter.Additions, error) {
	var add adapter.Additions
	errs := &multierror.Error{ErrorFormat: oneLine}
	for i := range v.Members {
		m := &v.Members[i]
		for _, v4 := range families {
			ip := m.InternalIP(v4)
			if !ip.IsValid() {
				continue
			}
			hop, err := routes.to(m, v4)
			if err != nil {
				errs = multierror.Append(errs, fmt.Errorf("member: %w", err))
				continue
			}
			add.Routes = append(add.Routes, state.Route{
				Table:  state.TableReturn,
				Dst:    netip.PrefixFrom(ip, ip.BitLen()),
				Type:   state.Unicast,
				Via:    hop.Via,
				Device: hop.Device,
				OnLink: hop.OnLink,
				MTU:    hop.MTU,
			})
		}
	}
	return add, errs.ErrorOrNil()
}

func hasFamily(remote []adapter.Remote, v4 bool) bool {
	return slices.ContainsFunc(remote, func(r adapter.Remote) bool { return r.Prefix.Addr().Is4() == v4 })
}

// smaller returns the smaller of two MTUs, where 0 means unknown.
func smaller(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// oneLine prints errors the way that warnings are shown.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}
