package join

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

// Interface is a tunnel that is a WireGuard link of this machine: the kernel's, or
// the built-in device where the kernel has none.
type Interface struct {
	name   string
	device *wireguard.Device
	peers  []render.Peer
}

// NewInterface makes the link and gives it its key and addresses. It refuses a name
// that is taken. It needs the rights of root.
func NewInterface(ctx context.Context, name string, private [32]byte, addresses []netip.Addr, mtu int, log *slog.Logger) (*Interface, error) {
	if _, err := netlink.LinkByName(name); err == nil {
		return nil, fmt.Errorf("interface %s is there already: name another one with --interface, or remove it: ip link delete %[1]s", name)
	}
	d, err := wireguard.Ensure(ctx, wireguard.Options{Interface: name, MTU: mtu, Log: log})
	if err != nil {
		return nil, err
	}
	i := &Interface{name: name, device: d}
	if err := i.begin(private, addresses); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// Kind is wireguard.Kernel or wireguard.Userspace.
func (i *Interface) Kind() string { return i.device.Kind() }

// Done is closed when the device ends that this process serves; nil: it serves none.
func (i *Interface) Done() <-chan struct{} { return i.device.Done() }

func (i *Interface) begin(private [32]byte, addresses []netip.Addr) error {
	key := wgtypes.Key(private)
	if err := i.configure(wgtypes.Config{PrivateKey: &key}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(i.name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", i.name, err)
	}
	for _, a := range addresses {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}); err != nil {
			return fmt.Errorf("interface %s: address %s: %w", i.name, a, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s: %w", i.name, err)
	}
	return nil
}

func (i *Interface) configure(c wgtypes.Config) error {
	control, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("WireGuard control: %w", err)
	}
	defer control.Close()
	if err := control.ConfigureDevice(i.name, c); err != nil {
		return fmt.Errorf("interface %s: configure WireGuard: %w", i.name, err)
	}
	return nil
}

// Set implements Tunnel. Routes follow the peers' allowed IPs.
func (i *Interface) Set(_ context.Context, peers []render.Peer) error {
	var c wgtypes.Config
	old := map[model.Key]*render.Peer{}
	for n := range i.peers {
		old[i.peers[n].Key] = &i.peers[n]
	}
	for n := range peers {
		p := &peers[n]
		was := old[p.Key]
		delete(old, p.Key)
		if was == nil || !same(was, p) {
			c.Peers = append(c.Peers, peerConfig(p, was))
		}
	}
	for k := range old {
		c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: wgtypes.Key(k), Remove: true})
	}
	if len(c.Peers) == 0 {
		return nil
	}
	if err := i.configure(c); err != nil {
		return err
	}
	if err := i.route(allowed(i.peers), allowed(peers)); err != nil {
		return err
	}
	i.peers = slices.Clone(peers)
	return nil
}

func peerConfig(p, was *render.Peer) wgtypes.PeerConfig {
	keepalive := p.Keepalive
	secret := wgtypes.Key(p.PresharedKey.Bytes())
	c := wgtypes.PeerConfig{PublicKey: wgtypes.Key(p.Key), PresharedKey: &secret, PersistentKeepaliveInterval: &keepalive, ReplaceAllowedIPs: true}
	if at := p.Endpoint.AddrPort(); at.IsValid() && (was == nil || was.Endpoint.AddrPort() != at) {
		c.Endpoint = net.UDPAddrFromAddrPort(at)
	}
	for _, prefix := range p.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, *ipNet(prefix))
	}
	return c
}

func allowed(peers []render.Peer) (out []netip.Prefix) {
	for i := range peers {
		out = append(out, peers[i].AllowedIPs...)
	}
	return out
}

// route adds what is new, then removes what is gone. What a route of somebody else
// leads elsewhere already is his: it is said, and the rest goes on.
func (i *Interface) route(before, after []netip.Prefix) error {
	link, err := netlink.LinkByName(i.name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", i.name, err)
	}
	route := func(p netip.Prefix) *netlink.Route {
		return &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Scope: netlink.SCOPE_LINK}
	}
	var errs []error
	for _, p := range after {
		if slices.Contains(before, p) {
			continue
		}
		if err := netlink.RouteAdd(route(p)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("route to %s: %w", p, err))
		} else if err != nil {
			errs = append(errs, fmt.Errorf("route to %s: this machine has another one already; does its network use the addresses of the cluster?", p))
		}
	}
	for _, p := range before {
		if slices.Contains(after, p) {
			continue
		}
		if err := netlink.RouteDel(route(p)); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("route to %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Close implements Tunnel: the link goes, and its addresses and routes with it.
func (i *Interface) Close() error {
	i.device.Close()
	link, err := netlink.LinkByName(i.name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", i.name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
