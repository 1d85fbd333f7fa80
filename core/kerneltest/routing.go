package kerneltest

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/kilo-overlay/kilo/core/state"
)

func ourTable(table int) bool { return table == state.TableOverlay || table == state.TableReturn }

func ourPriority(priority int) bool {
	return priority >= state.PriorityTunnel && priority <= state.PriorityOverlay
}

func (k *Kernel) setRoute(r state.Route) error {
	if !ourTable(r.Table) {
		return fmt.Errorf("table %d is not ours to write", r.Table)
	}
	if err := k.checkRoute(r); err != nil {
		return err
	}
	return k.insert(route{r, state.Protocol}, true)
}

// insert adds a route, or with replace puts it in the place of one of the same
// table, destination and metric.
func (k *Kernel) insert(r route, replace bool) error {
	if r.Metric == 0 && r.Dst.Addr().Is6() {
		r.Metric = 1024
	}
	for i := range k.routes {
		if is := &k.routes[i]; is.Table == r.Table && is.Dst == r.Dst && is.Metric == r.Metric {
			if !replace {
				return fmt.Errorf("%s: %w", r.Route, syscall.EEXIST)
			}
			*is = r
			return nil
		}
	}
	k.routes = append(k.routes, r)
	return nil
}

// checkRoute refuses what Linux refuses, with the error number it uses.
func (k *Kernel) checkRoute(r state.Route) error {
	if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() {
		return fmt.Errorf("invalid prefix %s: %w", r.Dst, syscall.EINVAL)
	}
	switch r.Type {
	case state.Local:
		if is4(r.Dst) {
			return fmt.Errorf("type %s is for IPv6 only: %w", r.Type, syscall.EINVAL)
		}
		fallthrough
	case state.Unreachable, state.Throw:
		if r.Device != "" || r.Via.IsValid() {
			return fmt.Errorf("device and gateway say nothing in a route of type %s: %w", r.Type, syscall.EINVAL)
		}
		return nil
	case state.Unicast:
	default:
		return fmt.Errorf("type %s: %w", r.Type, syscall.EINVAL)
	}
	l := k.links[r.Device]
	switch {
	case l == nil:
		return fmt.Errorf("dev %q: %w", r.Device, syscall.ENODEV)
	case l.Down:
		return fmt.Errorf("dev %s is not up: %w", r.Device, syscall.ENETDOWN)
	case r.Source.IsValid() && (r.Source.Is4() != is4(r.Dst) || !k.local(r.Source)):
		return fmt.Errorf("src %s is no address of this node: %w", r.Source, syscall.EINVAL)
	case !r.Via.IsValid():
		return nil
	case r.Via.Is4() != is4(r.Dst):
		return fmt.Errorf("via %s: not of the destination's family: %w", r.Via, syscall.EINVAL)
	case r.OnLink && k.local(r.Via):
		return fmt.Errorf("via %s: an address of this node: %w", r.Via, syscall.EINVAL)
	case !r.OnLink && !connected(l, r.Via):
		return fmt.Errorf("via %s: not on a network of dev %s: %w", r.Via, r.Device, syscall.ENETUNREACH)
	}
	return nil
}

// local tells whether a is an address of this node.
func (k *Kernel) local(a netip.Addr) bool {
	for _, l := range k.links {
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return true
		}
	}
	return false
}

// connected tells whether a is on a network that the link has an address in.
func connected(l *link, a netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (k *Kernel) deleteRoute(r state.Route) error {
	if !ourTable(r.Table) {
		return fmt.Errorf("table %d is not ours to write", r.Table)
	}
	if r.Metric == 0 && r.Dst.Addr().Is6() {
		r.Metric = 1024
	}
	k.dropRoutes(func(is *route) bool {
		return is.protocol == state.Protocol && is.Table == r.Table && is.Dst == r.Dst && is.Metric == r.Metric &&
			is.Type == r.Type && is.Via == r.Via && is.Device == r.Device
	})
	return nil
}

func (k *Kernel) dropRoutes(which func(*route) bool) {
	k.routes = slices.DeleteFunc(k.routes, func(r route) bool { return which(&r) })
}

// addConnected adds what an address brings into main: a route to its network.
func (k *Kernel) addConnected(device string, a netip.Prefix) {
	if a.IsSingleIP() {
		return
	}
	r := state.Route{Table: state.TableMain, Dst: a.Masked(), Type: state.Unicast, Device: device}
	if a.Addr().Is4() {
		r.Source = a.Addr()
	}
	_ = k.insert(route{r, protocolKernel}, false) // there already: another address of the same network
}

func (k *Kernel) dropConnected(device string, a netip.Prefix) {
	k.dropRoutes(func(r *route) bool {
		return r.protocol == protocolKernel && r.Device == device && r.Dst == a.Masked()
	})
}

func (k *Kernel) addRule(r state.Rule) error {
	if !ourPriority(r.Priority) {
		return fmt.Errorf("priority %d is not ours to use", r.Priority)
	}
	if !ourTable(r.Table) && r.Table != state.TableMain {
		return fmt.Errorf("table %d is not one that our rules look up", r.Table)
	}
	if !slices.Contains(k.rules, rule{r, state.Protocol}) {
		k.rules = append(k.rules, rule{r, state.Protocol})
	}
	return nil
}

func (k *Kernel) deleteRule(r state.Rule) error {
	k.rules = slices.DeleteFunc(k.rules, func(is rule) bool { return is == rule{r, state.Protocol} })
	return nil
}
