package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cut forgets the connections that conntrack knows from or to any of these
// prefixes, and returns how many there were. A translation that was decided for
// one of them ends with it.
func (k *Kernel) Cut(ctx context.Context, prefixes []netip.Prefix) (int, error) {
	total := uint(0)
	var errs []error
	for family, v4 := range map[netlink.InetFamily]bool{unix.AF_INET: true, unix.AF_INET6: false} {
		var f flows
		for _, p := range prefixes {
			if p.Addr().Is4() == v4 {
				f = append(f, p)
			}
		}
		if len(f) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return int(total), err
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
		total += n
		if err != nil {
			errs = append(errs, fmt.Errorf("forget connections of %v: %w", []netip.Prefix(f), err))
		}
	}
	return int(total), errors.Join(errs...)
}

// flows matches connections that concern prefixes, by what the two ends call each
// other: a translated one is known by both sides' addresses.
type flows []netip.Prefix

// MatchConntrackFlow is what netlink asks.
func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{flow.Forward.SrcIP, flow.Forward.DstIP, flow.Reverse.SrcIP} {
		a, ok := netip.AddrFromSlice(ip)
		if !ok {
			continue
		}
		for _, p := range f {
			if p.Contains(a.Unmap()) {
				return true
			}
		}
	}
	return false
}
