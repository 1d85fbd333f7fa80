package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// Renumber gives a running machine other addresses, as DHCP does: the old ones
// are gone, and the routes that hung on them are made anew. lan or public may be
// invalid: that one stays. The Node's status follows, as a kubelet's report
// does, and what does not follow by itself is restarted, as an administrator
// does: the CNI and kube-proxy. It returns the machine as it is now.
func (l *Lab) Renumber(ctx context.Context, name string, lan, public netip.Addr) (*Machine, error) {
	spec := l.Spec.clone()
	loc, n, ok := spec.node(name)
	if !ok {
		return nil, fmt.Errorf("lab %s has no machine %q", l.Name, name)
	}
	before := *n
	if lan.IsValid() {
		n.LAN = lan
	}
	if public.IsValid() {
		n.PublicIP = public
	}
	if err := spec.check(); err != nil {
		return nil, err
	}
	l.Spec = spec
	// Recorded first: the kubelets must know it.
	if err := l.save(true); err != nil {
		return nil, err
	}
	var lines []string
	if n.LAN != before.LAN {
		lines = append(lines, fmt.Sprintf("addr del %s/%d dev %s", before.LAN, loc.Subnets[n.Subnet].Bits(), n.lanInterface()))
		lines = append(lines, lanAddress(loc, n)...)
	}
	if n.PublicIP != before.PublicIP {
		bits := l.Spec.Internet.Bits()
		if l.Spec.RoutedInternet {
			bits = 32
		}
		lines = append(lines, fmt.Sprintf("addr del %s/%d dev %s", before.PublicIP, bits, n.publicInterface()))
		lines = append(lines, l.publicAddress(n.publicInterface(), n.PublicIP)...)
		if l.Spec.RoutedInternet {
			if err := l.ip(ctx, internet, "route del "+before.PublicIP.String(), l.routeToLeg(name, n.PublicIP)); err != nil {
				return nil, err
			}
		}
	}
	if err := l.ip(ctx, name, lines...); err != nil {
		return nil, err
	}
	m := l.Machine(name)
	if n.Outsider {
		return m, nil
	}
	if err := m.Register(ctx); err != nil {
		return nil, err
	}
	if l.Spec.ProxyMode != ProxyOff {
		if err := m.RestartProxy(ctx); err != nil {
			return nil, err
		}
	}
	if l.Spec.CNI.hasFlannel() {
		if err := m.RestartFlannel(ctx); err != nil {
			return nil, err
		}
	}
	if l.Spec.CNI.hasCilium() {
		if err := m.RestartCilium(ctx); err != nil {
			return nil, err
		}
	}
	return m, nil
}
