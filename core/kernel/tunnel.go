package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

// aliveFor is WireGuard's REJECT_AFTER_TIME: after it, a session is dead and
// only a new handshake helps.
const aliveFor = 180 * time.Second

// PeerStatus is what the WireGuard device knows of a peer's traffic.
type PeerStatus struct {
	Link string // the interface's name
	Key  model.Key
	// Endpoint is where the peer was heard last, or where to knock; invalid: none.
	Endpoint netip.AddrPort
	// LastHandshake is zero when there was none.
	LastHandshake time.Time
	// ReceivedBytes and SentBytes count since the peer was created.
	ReceivedBytes, SentBytes int64
}

// Peers tells how the WireGuard links' peers fare. Without the first link that is
// an error; the others are there or not.
func (k *Kernel) Peers(context.Context) ([]PeerStatus, error) {
	var peers []PeerStatus
	err := k.eachDevice(func(d *wgtypes.Device) bool {
		for i := range d.Peers {
			p := &d.Peers[i]
			peers = append(peers, PeerStatus{Link: d.Name, Key: model.Key(p.PublicKey), Endpoint: endpoint(p.Endpoint),
				LastHandshake: p.LastHandshakeTime, ReceivedBytes: p.ReceiveBytes, SentBytes: p.TransmitBytes})
		}
		return true
	})
	return peers, err
}

// eachDevice hands the WireGuard devices that are there to f, until it returns
// false.
func (k *Kernel) eachDevice(f func(*wgtypes.Device) bool) error {
	for i, name := range k.tunnels {
		if i > 0 {
			if link, err := k.ourLink(name); err != nil || link == nil {
				continue
			}
		}
		d, err := device(name)
		if err != nil {
			return err
		}
		if !f(d) {
			return nil
		}
	}
	return nil
}

// withControl runs f with a fresh WireGuard client. A client knows the
// kernel's WireGuard only if the module was loaded when it was made, which
// happens with the first link; so none is kept.
func withControl(f func(c *wgctrl.Client) error) error {
	c, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("open WireGuard control: %w", err)
	}
	defer c.Close()
	return f(c)
}

func device(name string) (d *wgtypes.Device, err error) {
	err = withControl(func(c *wgctrl.Client) error {
		d, err = c.Device(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read WireGuard device %s: %w", name, err)
	}
	return d, nil
}

func configure(name string, cfg wgtypes.Config) error {
	err := withControl(func(c *wgctrl.Client) error { return c.ConfigureDevice(name, cfg) })
	if err != nil {
		return fmt.Errorf("configure WireGuard device: %w", controlError(err))
	}
	return nil
}

// controlError reads the number out of what the userspace device's control
// socket answered ("errno=-98"), which the library hands on as text.
func controlError(err error) error {
	_, number, ok := strings.Cut(err.Error(), "errno=")
	if !ok {
		return err
	}
	n, convErr := strconv.Atoi(strings.TrimSpace(number))
	if convErr != nil || n >= 0 {
		return err
	}
	return unix.Errno(-n)
}

// holdsOurKey tells whether the WireGuard device of that name holds our key.
func (k *Kernel) holdsOurKey(name string) bool {
	d, err := device(name)
	return err == nil && model.Key(d.PublicKey) == k.public
}

func observeTunnel(name string) (*state.Tunnel, error) {
	d, err := device(name)
	if err != nil {
		return nil, err
	}
	t := &state.Tunnel{
		Key:   model.Key(d.PublicKey),
		Port:  uint16(d.ListenPort),
		Mark:  uint32(d.FirewallMark),
		Peers: make([]state.Peer, len(d.Peers)),
	}
	if d.PrivateKey == (wgtypes.Key{}) {
		t.Key = model.Key{} // the public key of no key is none
	}
	for i := range d.Peers {
		p := &d.Peers[i]
		t.Peers[i] = state.Peer{
			Key:          model.Key(p.PublicKey),
			PresharedKey: model.NewPresharedKey(p.PresharedKey),
			Endpoint:     endpoint(p.Endpoint),
			Keepalive:    p.PersistentKeepaliveInterval,
			Alive:        !p.LastHandshakeTime.IsZero() && time.Since(p.LastHandshakeTime) < aliveFor,
		}
		for j := range p.AllowedIPs {
			if a, ok := prefix(&p.AllowedIPs[j]); ok {
				t.Peers[i].AllowedIPs = append(t.Peers[i].AllowedIPs, a)
			}
		}
	}
	return t, nil
}

func endpoint(e *net.UDPAddr) netip.AddrPort {
	if e == nil {
		return netip.AddrPort{}
	}
	a := e.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// makeTunnel has the missing WireGuard link made.
func (k *Kernel) makeTunnel(ctx context.Context, name string, port uint16) (netlink.Link, error) {
	if k.ensure == nil {
		return nil, fmt.Errorf("interface %s is not there; core/wireguard makes it", name)
	}
	if err := k.ensure(ctx, name, port); err != nil {
		return nil, err
	}
	link, err := k.ourLink(name)
	if err == nil && link == nil {
		err = fmt.Errorf("interface %s vanished while it was being made", name)
	}
	return link, err
}

// configureTunnel sets what differs of key, port and mark: setting even the
// same port again would make the userspace device open its sockets anew.
func (k *Kernel) configureTunnel(link netlink.Link, t *state.Tunnel) error {
	name := link.Attrs().Name
	if t.Key != k.public {
		return fmt.Errorf("the wanted public key %s is not that of this node's private key, %s", t.Key, k.public)
	}
	d, err := device(name)
	if err != nil {
		return err
	}
	var cfg wgtypes.Config
	changes := false
	if private := k.private(); d.PrivateKey != private {
		cfg.PrivateKey, changes = &private, true
	}
	if port := int(t.Port); d.ListenPort != port {
		cfg.ListenPort, changes = &port, true
	}
	if mark := int(t.Mark); d.FirewallMark != mark {
		cfg.FirewallMark, changes = &mark, true
	}
	if !changes {
		return nil
	}
	// A userspace device that could not open its port reports 0 and stays
	// closed until its interface comes up again.
	if d.ListenPort == 0 && link.Attrs().Flags&net.FlagUp != 0 {
		if err := netlink.LinkSetDown(link); err != nil {
			return fmt.Errorf("set down: %w", err)
		}
	}
	return portError(configure(name, cfg), name, t.Port)
}

// portError says whose the port is that the device could not open.
func portError(err error, name string, port uint16) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	owner, ownerErr := wireguard.PortOwner(port, name)
	if ownerErr != nil || owner == "" {
		return err
	}
	return fmt.Errorf("UDP port %d belongs to %s: %w", port, owner, err)
}

func (k *Kernel) setPeer(c state.SetPeer) error {
	preshared := wgtypes.Key(c.Peer.PresharedKey.Bytes())
	keepalive := c.Peer.Keepalive
	p := wgtypes.PeerConfig{
		PublicKey:                   wgtypes.Key(c.Peer.Key),
		PresharedKey:                &preshared, // zero clears
		PersistentKeepaliveInterval: &keepalive, // zero turns off
		ReplaceAllowedIPs:           c.ReplaceAllowedIPs,
	}
	if c.SetEndpoint && c.Peer.Endpoint.IsValid() {
		p.Endpoint = net.UDPAddrFromAddrPort(c.Peer.Endpoint)
	}
	allowed := c.AddAllowedIPs
	if c.ReplaceAllowedIPs {
		allowed = c.Peer.AllowedIPs
	}
	for _, a := range allowed {
		p.AllowedIPs = append(p.AllowedIPs, *ipNet(a.Masked()))
	}
	return k.patch(c.Link, p)
}

// Greet has the device send a peer a keepalive, and with it a handshake where
// there is no session: that is what turning keepalive on does.
func (k *Kernel) Greet(_ context.Context, key model.Key) error {
	var link string
	var was time.Duration
	err := k.eachDevice(func(d *wgtypes.Device) bool {
		i := slices.IndexFunc(d.Peers, func(p wgtypes.Peer) bool { return model.Key(p.PublicKey) == key })
		if i >= 0 {
			link, was = d.Name, d.Peers[i].PersistentKeepaliveInterval
		}
		return i < 0
	})
	if err != nil {
		return err
	}
	if link == "" {
		return fmt.Errorf("no WireGuard interface has a peer %s to greet", key)
	}
	set := func(keepalive time.Duration) error {
		return k.patch(link, wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), UpdateOnly: true, PersistentKeepaliveInterval: &keepalive})
	}
	if was != 0 {
		return errors.Join(set(0), set(was))
	}
	return errors.Join(set(time.Second), set(0))
}

func (k *Kernel) deletePeer(c state.DeletePeer) error {
	err := k.patch(c.Link, wgtypes.PeerConfig{PublicKey: wgtypes.Key(c.Key), Remove: true, UpdateOnly: true})
	if errors.As(err, new(*missingLink)) {
		return nil
	}
	return err
}

// missingLink says that a link of ours is not there (yet).
type missingLink struct{ name string }

func (m *missingLink) Error() string { return fmt.Sprintf("interface %s is not there", m.name) }

// patch changes one peer and leaves the others alone.
func (k *Kernel) patch(name string, p wgtypes.PeerConfig) error {
	link, err := k.ourLink(name)
	if err != nil {
		return err
	}
	if link == nil {
		return &missingLink{name}
	}
	return configure(name, wgtypes.Config{Peers: []wgtypes.PeerConfig{p}})
}
