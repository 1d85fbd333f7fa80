package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// icmpSized is a raw ICMP socket that keeps its packets whole.
type icmpSized struct {
	conn   *net.IPConn
	v6     bool
	id     int
	cookie []byte
}

// openSizedEcho binds a raw ICMP socket (CAP_NET_RAW) to from. Its packets carry
// "do not fragment", and what the kernel believes of the path's MTU does not
// count: that is what is being measured.
func openSizedEcho(from netip.Addr) (sizedEcho, error) {
	e := &icmpSized{v6: from.Is6(), cookie: make([]byte, 8)}
	_, _ = rand.Read(e.cookie) // never fails
	e.id = int(binary.BigEndian.Uint16(e.cookie))
	network := "ip4:icmp"
	if e.v6 {
		network = "ip6:ipv6-icmp"
	}
	conn, err := net.ListenIP(network, &net.IPAddr{IP: from.AsSlice()})
	if err != nil {
		return nil, fmt.Errorf("ICMP socket on %s: %w", from, err)
	}
	e.conn = conn
	if err := errors.Join(e.keepWhole(), e.onlyReplies()); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("ICMP socket on %s: %w", from, err)
	}
	return e, nil
}

func (e *icmpSized) keepWhole() error {
	raw, err := e.conn.SyscallConn()
	if err != nil {
		return err
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if e.v6 {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(err, failed)
}

func (e *icmpSized) onlyReplies() error {
	if e.v6 {
		var f ipv6.ICMPFilter
		f.SetAll(true)
		f.Accept(ipv6.ICMPTypeEchoReply)
		return ipv6.NewPacketConn(e.conn).SetICMPFilter(&f)
	}
	var f ipv4.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv4.ICMPTypeEchoReply)
	return ipv4.NewPacketConn(e.conn).SetICMPFilter(&f)
}

// headers of an echo request: the network's and ICMP's own, in bytes.
func (e *icmpSized) headers() int {
	if e.v6 {
		return ipv6.HeaderLen + 8
	}
	return ipv4.HeaderLen + 8
}

func (e *icmpSized) Send(to netip.Addr, size int) error {
	data := make([]byte, max(size-e.headers(), len(e.cookie)))
	copy(data, e.cookie)
	kind := icmp.Type(ipv4.ICMPTypeEcho)
	if e.v6 {
		kind = ipv6.ICMPTypeEchoRequest
	}
	// The kernel fills in ICMPv6's checksum on a raw socket.
	b, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: e.id, Data: data}}).Marshal(nil)
	if err != nil {
		return err
	}
	_, err = e.conn.WriteToIP(b, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
	return err
}

func (e *icmpSized) Receive() (netip.Addr, int, error) {
	protocol := ipv4.ICMPTypeEchoReply.Protocol()
	if e.v6 {
		protocol = ipv6.ICMPTypeEchoReply.Protocol()
	}
	b := make([]byte, 1<<16)
	for {
		n, from, err := e.conn.ReadFromIP(b)
		if err != nil {
			return netip.Addr{}, 0, err
		}
		m, err := icmp.ParseMessage(protocol, b[:n])
		if err != nil {
			continue
		}
		body, ok := m.Body.(*icmp.Echo)
		if !ok || body.ID != e.id || !bytes.HasPrefix(body.Data, e.cookie) {
			continue
		}
		if a, ok := netip.AddrFromSlice(from.IP); ok {
			return a.Unmap(), len(body.Data) + e.headers(), nil
		}
	}
}

func (e *icmpSized) Close() error { return e.conn.Close() }
