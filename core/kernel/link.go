package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// observeLinks reads our links. A stranger's link of the same name is not ours.
func (k *Kernel) observeLinks(names names) ([]state.Link, error) {
	var links []state.Link
	var errs []error
	for _, name := range append(slices.Clone(k.tunnels), state.VXLANLink) {
		link, err := k.ourLink(name)
		if err != nil || link == nil {
			if !errors.As(err, new(*foreignLink)) {
				errs = append(errs, err)
			}
			continue
		}
		l, err := k.observeLink(link, names)
		if err != nil {
			errs = append(errs, fmt.Errorf("link %s: %w", name, err))
		}
		links = append(links, l)
	}
	l, ours, err := loopback()
	if err != nil {
		errs = append(errs, err)
	}
	if ours {
		links = append(links, l)
	}
	return links, errors.Join(errs...)
}

func (k *Kernel) observeLink(link netlink.Link, names names) (state.Link, error) {
	attrs := link.Attrs()
	l := state.Link{Name: attrs.Name, MTU: attrs.MTU, Down: attrs.Flags&net.FlagUp == 0}
	var errs []error
	var err error
	l.Loose = reversePath(attrs.Name) == rpLoose
	if l.Addresses, err = addresses(link); err != nil {
		errs = append(errs, fmt.Errorf("list addresses: %w", err))
	}
	if vxlan, ok := link.(*netlink.Vxlan); ok {
		l.Kind = state.VXLAN
		l.VXLAN, err = observeVXLAN(vxlan, names)
	} else {
		l.Kind = state.WireGuard
		l.Tunnel, err = observeTunnel(attrs.Name)
	}
	return l, errors.Join(append(errs, err)...)
}

// addresses lists all addresses of a link with their lengths.
func addresses(link netlink.Link) ([]netip.Prefix, error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefix(a.IPNet); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// foreignLink says that a name of ours belongs to somebody else.
type foreignLink struct{ name, what string }

func (f *foreignLink) Error() string {
	return fmt.Sprintf("interface %s belongs to somebody else: it is %s and has not our alias %q; delete or rename it", f.name, f.what, state.LinkAlias)
}

// ourLink returns the link of that name if it is ours, nil if there is none,
// and a *foreignLink error otherwise.
func (k *Kernel) ourLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	kind := link.Type()
	switch {
	case name == state.VXLANLink && kind == "vxlan":
		// Without an alias and down it was made just now, by us or by an
		// agent that was killed in between.
		unused := link.Attrs().Alias == "" && link.Attrs().Flags&net.FlagUp == 0
		if link.Attrs().Alias == state.LinkAlias || unused {
			return link, nil
		}
	case slices.Contains(k.tunnels, name) && (kind == "wireguard" || kind == "tuntap"):
		// An earlier Kilo set no alias; it is ours by its key.
		if link.Attrs().Alias == state.LinkAlias || k.holdsOurKey(name) {
			return link, nil
		}
	}
	return nil, &foreignLink{name: name, what: fmt.Sprintf("a link of kind %q with alias %q", kind, link.Attrs().Alias)}
}

// setLink creates a link or brings it to what is wanted.
func (k *Kernel) setLink(ctx context.Context, l state.Link) error {
	if l.Kind == state.Loopback {
		return setLoopback(l.Addresses)
	}
	link, err := k.ourLink(l.Name)
	if err != nil {
		return err
	}
	switch {
	case l.Kind == state.WireGuard && slices.Contains(k.tunnels, l.Name) && l.Tunnel != nil:
		if link == nil {
			if link, err = k.makeTunnel(ctx, l.Name, l.Tunnel.Port); err != nil {
				return err
			}
		}
	case l.Kind == state.VXLAN && l.Name == state.VXLANLink && l.VXLAN != nil:
		if link, err = k.makeVXLAN(link, l); err != nil {
			return err
		}
	default:
		return fmt.Errorf("no such link is ours: only those of kind %s named %s and %s %q are", state.WireGuard, strings.Join(k.tunnels, ", "), state.VXLAN, state.VXLANLink)
	}

	if link.Attrs().Alias != state.LinkAlias {
		if err := netlink.LinkSetAlias(link, state.LinkAlias); err != nil {
			return fmt.Errorf("set alias: %w", err)
		}
	}
	if link.Attrs().MTU != l.MTU {
		if err := netlink.LinkSetMTU(link, l.MTU); err != nil {
			return fmt.Errorf("set MTU %d: %w", l.MTU, err)
		}
	}
	if v := l.VXLAN; v != nil && v.MAC != "" && link.Attrs().HardwareAddr.String() != v.MAC {
		mac, err := net.ParseMAC(v.MAC)
		if err != nil {
			return fmt.Errorf("MAC %q: %w", v.MAC, err)
		}
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("set MAC %s: %w", mac, err)
		}
	}
	// Before the link is up: a link-local address brings a route into main.
	if err := netlink.LinkSetIP6AddrGenMode(link, addrGenModeNone); err != nil && !noIPv6(err) {
		return fmt.Errorf("set addrgenmode none: %w", err)
	}
	if l.Loose != (reversePath(l.Name) == rpLoose) {
		value := uint32(0)
		if l.Loose {
			value = rpLoose
		}
		if err := setReversePath(link, value); err != nil {
			return fmt.Errorf("set rp_filter %d: %w", value, err)
		}
	}
	if l.Tunnel != nil {
		if err := k.configureTunnel(link, l.Tunnel); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		err = fmt.Errorf("set up: %w", err)
		if l.Tunnel != nil { // the kernel's device opens its port now
			err = portError(err, l.Name, l.Tunnel.Port)
		}
		return err
	}
	if err := setAddresses(link, l.Addresses); err != nil {
		return err
	}
	if l.VXLAN != nil {
		return setRemotes(link.(*netlink.Vxlan), l.VXLAN.Remotes)
	}
	return nil
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE: no link-local address.
const addrGenModeNone = 1

// setAddresses adds what is missing, then removes what is not wanted.
func setAddresses(link netlink.Link, wanted []netip.Prefix) error {
	have, err := addresses(link)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range wanted {
		if slices.Contains(have, a) {
			continue
		}
		// Even an IPv6 address of its own length brings a route into main
		// unless told not to; and until the kernel has looked for duplicates,
		// which a tunnel has not, no route may name it as its source.
		addr := &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	for _, a := range have {
		if slices.Contains(wanted, a) {
			continue
		}
		if err := netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(a)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete address %s: %w", a, err)
		}
	}
	return nil
}

// deleteLink removes a link of ours. A stranger's is left alone: nothing of
// ours is there.
func (k *Kernel) deleteLink(name string) error {
	if name == state.LoopbackLink {
		return setLoopback(nil)
	}
	link, err := k.ourLink(name)
	if link == nil {
		if errors.As(err, new(*foreignLink)) {
			return nil
		}
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// addr returns the address in its family's form; it is invalid for none.
func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// prefix returns an IPNet as it is, host bits included.
func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a := addr(n.IP)
	ones, bits := n.Mask.Size()
	if !a.IsValid() || bits != a.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, ones), true
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
