package kerneltest

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

func (k *Kernel) setLink(want state.Link) error {
	if want.Kind == state.Loopback {
		return k.setLoopback(want)
	}
	if !k.ours(want.Name) {
		return fmt.Errorf("link %s is not ours to set", want.Name)
	}
	if err := k.checkLink(want); err != nil {
		return fmt.Errorf("link %s: %w", want.Name, err)
	}
	l := k.links[want.Name]
	if l != nil && l.foreign {
		return fmt.Errorf("link %s belongs to somebody else", want.Name)
	}
	if l == nil {
		l = &link{Link: state.Link{Name: want.Name, Kind: want.Kind, VXLAN: want.VXLAN}}
		if want.Tunnel != nil {
			l.Tunnel = &state.Tunnel{}
		}
		k.links[want.Name] = l
	}
	if l.Kind != want.Kind {
		return fmt.Errorf("link %s is a %s, not a %s: %w", want.Name, l.Kind, want.Kind, syscall.EEXIST)
	}
	if want.VXLAN != nil {
		if is := l.VXLAN; is.ID != want.VXLAN.ID || is.Port != want.VXLAN.Port {
			return fmt.Errorf("link %s: VNI and port of a VXLAN cannot be changed: %w", want.Name, syscall.EOPNOTSUPP)
		}
		if mac := l.VXLAN.MAC; want.VXLAN.MAC == "" {
			want.VXLAN.MAC = mac
		}
		l.VXLAN = want.VXLAN
	}
	if want.Tunnel != nil {
		peers := l.Tunnel.Peers
		*l.Tunnel = *want.Tunnel
		l.Tunnel.Peers = peers
	}
	if l.MTU != want.MTU {
		k.followMTU(want.Name, l.MTU, want.MTU)
	}
	l.MTU, l.Down, l.Loose = want.MTU, false, want.Loose
	for _, a := range want.Addresses {
		if !slices.Contains(l.Addresses, a) {
			l.Addresses = append(l.Addresses, a)
		}
	}
	for _, a := range slices.Clone(l.Addresses) {
		if !slices.Contains(want.Addresses, a) {
			k.removeAddress(l, a)
		}
	}
	return nil
}

// followMTU takes the MTU of a link's IPv6 routes along, where it does not fit
// any more or was the link's own.
func (k *Kernel) followMTU(device string, from, to int) {
	for i := range k.routes {
		if r := &k.routes[i]; r.Device == device && !is4(r.Dst) && r.MTU != 0 && (r.MTU >= to || r.MTU == from) {
			r.MTU = to
		}
	}
}

func (k *Kernel) checkLink(want state.Link) error {
	if want.MTU < 68 || want.MTU > 65535 {
		return fmt.Errorf("mtu %d: %w", want.MTU, syscall.EINVAL)
	}
	switch want.Kind {
	case state.WireGuard:
		if !slices.Contains(state.TunnelLinks(k.wg), want.Name) || want.Tunnel == nil || want.VXLAN != nil {
			return fmt.Errorf("not a whole WireGuard link: %w", syscall.EINVAL)
		}
		if want.Tunnel.Key != k.key {
			return fmt.Errorf("no private key for public key %s", want.Tunnel.Key)
		}
	case state.VXLAN:
		if want.Name == k.wg || want.VXLAN == nil || want.Tunnel != nil {
			return fmt.Errorf("not a whole VXLAN link: %w", syscall.EINVAL)
		}
		if k.links[want.VXLAN.Device] == nil {
			return fmt.Errorf("dev %s: %w", want.VXLAN.Device, syscall.ENODEV)
		}
	default:
		return fmt.Errorf("kind %q: %w", want.Kind, syscall.EOPNOTSUPP)
	}
	return nil
}

// removeAddress takes an address, and along with it what the kernel takes:
// with the last IPv4 address the link's IPv4 routes; with an IPv6 address its
// place as a preferred source. A preferred IPv4 source outside main stays.
func (k *Kernel) removeAddress(l *link, a netip.Prefix) {
	l.Addresses = slices.DeleteFunc(l.Addresses, func(b netip.Prefix) bool { return a == b })
	k.dropConnected(l.Name, a)
	if a.Addr().Is4() {
		if !slices.ContainsFunc(l.Addresses, is4) {
			k.dropRoutes(func(r *route) bool { return r.Device == l.Name && is4(r.Dst) })
		}
		return
	}
	for i := range k.routes {
		if k.routes[i].Source == a.Addr() {
			k.routes[i].Source = netip.Addr{}
		}
	}
}

func is4(p netip.Prefix) bool { return p.Addr().Is4() }

// setLoopback replaces our addresses on the loopback link.
func (k *Kernel) setLoopback(want state.Link) error {
	if want.Name != state.LoopbackLink || want.MTU != 0 || want.Tunnel != nil || want.VXLAN != nil {
		return fmt.Errorf("link %s: not the loopback link, or more of it than addresses: %w", want.Name, syscall.EINVAL)
	}
	for _, a := range want.Addresses {
		if !is4(a) {
			return fmt.Errorf("link %s: address %s has no label: %w", want.Name, a, syscall.EINVAL)
		}
	}
	k.loopback = want.Addresses
	return nil
}

func (k *Kernel) deleteOurLink(name string) error {
	if name == state.LoopbackLink {
		k.loopback = nil
		return nil
	}
	if !k.ours(name) {
		return fmt.Errorf("link %s is not ours to delete", name)
	}
	if l := k.links[name]; l != nil && !l.foreign {
		k.deleteLink(name)
	}
	return nil
}

// deleteLink deletes a link, its routes, and the VXLANs that stand on it.
func (k *Kernel) deleteLink(name string) {
	delete(k.links, name)
	k.dropRoutes(func(r *route) bool { return r.Device == name })
	for _, l := range k.sortedLinks() {
		if l.VXLAN != nil && l.VXLAN.Device == name {
			k.deleteLink(l.Name)
		}
	}
}

// tunnel returns a WireGuard link's device.
func (k *Kernel) tunnel(name string) (*state.Tunnel, error) {
	l := k.links[name]
	if l == nil {
		return nil, fmt.Errorf("dev %s: %w", name, syscall.ENODEV)
	}
	if l.Tunnel == nil {
		return nil, fmt.Errorf("dev %s is no WireGuard device: %w", name, syscall.EOPNOTSUPP)
	}
	return l.Tunnel, nil
}

func (k *Kernel) setPeer(c state.SetPeer) error {
	t, err := k.tunnel(c.Link)
	if err != nil {
		return err
	}
	if c.Peer.Key == t.Key {
		return nil // WireGuard does not add a device to itself, and does not say so
	}
	if c.Peer.Keepalive < 0 || c.Peer.Keepalive > 65535*time.Second {
		return fmt.Errorf("keepalive %s: %w", c.Peer.Keepalive, syscall.EINVAL)
	}
	p := find(t, c.Peer.Key)
	if p == nil {
		t.Peers = append(t.Peers, state.Peer{Key: c.Peer.Key})
		p = &t.Peers[len(t.Peers)-1]
	}
	p.PresharedKey = c.Peer.PresharedKey
	p.Keepalive = c.Peer.Keepalive.Truncate(time.Second)
	if c.SetEndpoint {
		p.Endpoint = c.Peer.Endpoint
	}
	allowed := c.AddAllowedIPs
	if c.ReplaceAllowedIPs {
		p.AllowedIPs, allowed = nil, c.Peer.AllowedIPs
	}
	for _, a := range allowed {
		a = a.Masked()
		// A device knows each prefix once: the last to ask has it.
		for i := range t.Peers {
			other := &t.Peers[i]
			other.AllowedIPs = slices.DeleteFunc(other.AllowedIPs, func(b netip.Prefix) bool { return a == b })
		}
		p.AllowedIPs = append(p.AllowedIPs, a)
	}
	return nil
}

func (k *Kernel) deletePeer(c state.DeletePeer) error {
	if t, err := k.tunnel(c.Link); err == nil {
		t.Peers = slices.DeleteFunc(t.Peers, func(p state.Peer) bool { return p.Key == c.Key })
	}
	return nil
}

func find(t *state.Tunnel, key model.Key) *state.Peer {
	for i := range t.Peers {
		if t.Peers[i].Key == key {
			return &t.Peers[i]
		}
	}
	return nil
}
