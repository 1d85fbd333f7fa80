package join

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/netstack"

	"github.com/kilo-overlay/kilo/core/render"
)

// ErrNotInMesh is what dialling an address ends with that nobody in the mesh has.
var ErrNotInMesh = errors.New("it is not an address of the mesh")

// Stack is a tunnel with a network of its own in this process.
type Stack struct {
	device *device.Device
	net    *netstack.Net

	mu    sync.Mutex
	peers []render.Peer
}

// NewStack makes a Stack with these addresses. private is the WireGuard key. Names
// are looked up at dns, through the tunnel; with none only addresses can be dialled.
func NewStack(private [32]byte, addresses, dns []netip.Addr, mtu int) (*Stack, error) {
	t, n, err := netstack.CreateNetTUN(addresses, dns, mtu)
	if err != nil {
		return nil, fmt.Errorf("network stack: %w", err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	err = d.IpcSet("private_key=" + hex.EncodeToString(private[:]) + "\n")
	if err == nil {
		err = d.Up()
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("WireGuard: %w", err)
	}
	return &Stack{device: d, net: n}, nil
}

// Set implements Tunnel.
func (s *Stack) Set(_ context.Context, peers []render.Peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := changes(s.peers, peers)
	if text == "" {
		return nil
	}
	if err := s.device.IpcSet(text); err != nil {
		return fmt.Errorf("WireGuard: %w", err)
	}
	s.peers = slices.Clone(peers)
	return nil
}

// Close implements Tunnel.
func (s *Stack) Close() error { s.device.Close(); return nil }

// Dial connects by TCP to host:port through the tunnel. host is an address, or a
// name that the mesh's DNS knows.
func (s *Stack) Dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	addresses := []string{host}
	if _, err := netip.ParseAddr(host); err != nil {
		if addresses, err = s.net.LookupContextHost(ctx, host); err != nil {
			return nil, err
		}
	}
	last := error(ErrNotInMesh)
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		if err != nil || !s.reaches(a.Unmap()) {
			continue
		}
		c, err := s.net.DialContextTCPAddrPort(ctx, netip.AddrPortFrom(a.Unmap(), port))
		if err == nil {
			return c, nil
		}
		last = err
	}
	return nil, fmt.Errorf("%s: %w", host, last)
}

func (s *Stack) reaches(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.peers, func(p render.Peer) bool {
		return slices.ContainsFunc(p.AllowedIPs, func(q netip.Prefix) bool { return q.Contains(a) })
	})
}
