package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// scopeNowhere is RT_SCOPE_NOWHERE: the kernel chooses an address of that scope
// as nobody's source, and a host CNI that goes by scopes takes it for none of
// the node's.
const scopeNowhere = 255

// loopback returns what of the loopback link is ours; false: nothing.
func loopback() (l state.Link, ours bool, err error) {
	l = state.Link{Name: state.LoopbackLink, Kind: state.Loopback}
	link, err := netlink.LinkByName(state.LoopbackLink)
	if err != nil {
		return l, false, fmt.Errorf("interface %s: %w", state.LoopbackLink, err)
	}
	l.Addresses, err = labelled(link)
	return l, len(l.Addresses) > 0, err
}

// labelled lists the addresses with our label.
func labelled(link netlink.Link) ([]netip.Prefix, error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefix(a.IPNet); ok && a.Label == state.LoopbackLabel {
			out = append(out, p)
		}
	}
	return out, nil
}

// setLoopback adds what is missing of our addresses, then removes what is not
// wanted. Nothing else of the link is touched.
func setLoopback(wanted []netip.Prefix) error {
	link, err := netlink.LinkByName(state.LoopbackLink)
	if err != nil {
		return err
	}
	have, err := labelled(link)
	if err != nil {
		return err
	}
	at := func(p netip.Prefix) *netlink.Addr {
		return &netlink.Addr{IPNet: ipNet(p), Label: state.LoopbackLabel, Scope: scopeNowhere, Flags: unix.IFA_F_NOPREFIXROUTE}
	}
	for _, p := range wanted {
		if !p.Addr().Is4() {
			return fmt.Errorf("address %s: only IPv4 addresses can be marked as ours on %s", p, state.LoopbackLink)
		}
		if slices.Contains(have, p) {
			continue
		}
		if err := netlink.AddrAdd(link, at(p)); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	for _, p := range have {
		if slices.Contains(wanted, p) {
			continue
		}
		if err := netlink.AddrDel(link, at(p)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete address %s: %w", p, err)
		}
	}
	return nil
}
