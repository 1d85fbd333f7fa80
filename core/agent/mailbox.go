package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/kilo-overlay/kilo/core/failover"
)

// udpMailbox speaks UDP on one port of all addresses, IPv6 where the kernel has it.
type udpMailbox struct {
	port  uint16
	four  *ipv4.PacketConn
	six   *ipv6.PacketConn // nil: no IPv6
	mails chan mail
	done  chan struct{}
	close func()
}

func openMailbox(port uint16) (mailbox, error) {
	where := fmt.Sprintf(":%d", port)
	c4, err := net.ListenPacket("udp4", where)
	if err != nil {
		return nil, fmt.Errorf("UDP port %d (--failover-port): %w", port, err)
	}
	b := &udpMailbox{port: port, four: ipv4.NewPacketConn(c4), mails: make(chan mail, 64), done: make(chan struct{})}
	if c6, err := net.ListenPacket("udp6", where); err == nil {
		b.six = ipv6.NewPacketConn(c6)
		go b.read(c6)
	}
	go b.read(c4)
	b.close = sync.OnceFunc(func() {
		close(b.done)
		_ = c4.Close()
		if b.six != nil {
			_ = b.six.Close()
		}
	})
	return b, nil
}

// read hands on what arrives. More than somebody takes is dropped, as the network
// would: all of it is said again.
func (b *udpMailbox) read(c net.PacketConn) {
	buffer := make([]byte, failover.MaxMessage+1)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // what a packet of ours met on its way
		}
		udp, ok := from.(*net.UDPAddr)
		if !ok {
			continue
		}
		select {
		case b.mails <- mail{udp.AddrPort().Addr().Unmap(), append([]byte(nil), buffer[:n]...)}:
		case <-b.done:
			return
		default:
		}
	}
}

// Send sends from one of the node's addresses: by that one the receiver knows it.
func (b *udpMailbox) Send(from, to netip.Addr, payload []byte) error {
	dst := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, b.port))
	if to.Is4() {
		_, err := b.four.WriteTo(payload, &ipv4.ControlMessage{Src: from.AsSlice()}, dst)
		return err
	}
	if b.six == nil {
		return errors.New("this kernel has no IPv6")
	}
	_, err := b.six.WriteTo(payload, &ipv6.ControlMessage{Src: from.AsSlice()}, dst)
	return err
}

func (b *udpMailbox) Receive() (mail, error) {
	select {
	case m := <-b.mails:
		return m, nil
	case <-b.done:
		return mail{}, net.ErrClosed
	}
}

func (b *udpMailbox) Close() error {
	b.close()
	return nil
}
