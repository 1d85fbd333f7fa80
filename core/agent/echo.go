package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// icmpEcho is an ICMP socket bound to one of the node's addresses.
type icmpEcho struct {
	conn *icmp.PacketConn
	v6   bool
	// id and cookie tell our own replies from those of other pings: a raw
	// socket sees all of the host's.
	id     int
	cookie []byte
}

// openEcho binds a raw ICMP socket (CAP_NET_RAW) to from. The kernel's own
// ping sockets are no substitute: their group range is empty by default, even
// for root.
func openEcho(from netip.Addr) (echo, error) {
	e := &icmpEcho{v6: from.Is6(), cookie: make([]byte, 8)}
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(e.cookie)
	e.id = int(binary.BigEndian.Uint16(id[:]))

	network := "ip4:icmp"
	if e.v6 {
		network = "ip6:ipv6-icmp"
	}
	conn, err := icmp.ListenPacket(network, from.String())
	if err != nil {
		return nil, fmt.Errorf("ICMP socket on %s: %w", from, err)
	}
	e.conn = conn
	if err := e.onlyReplies(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("ICMP filter on %s: %w", from, err)
	}
	return e, nil
}

// onlyReplies has the kernel drop everything but echo replies before it wakes us.
func (e *icmpEcho) onlyReplies() error {
	if e.v6 {
		var f ipv6.ICMPFilter
		f.SetAll(true)
		f.Accept(ipv6.ICMPTypeEchoReply)
		return e.conn.IPv6PacketConn().SetICMPFilter(&f)
	}
	var f ipv4.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv4.ICMPTypeEchoReply)
	return e.conn.IPv4PacketConn().SetICMPFilter(&f)
}

func (e *icmpEcho) Send(to netip.Addr, seq uint16) error {
	kind := icmp.Type(ipv4.ICMPTypeEcho)
	if e.v6 {
		kind = ipv6.ICMPTypeEchoRequest
	}
	m := icmp.Message{Type: kind, Body: &icmp.Echo{ID: e.id, Seq: int(seq), Data: e.cookie}}
	// The kernel fills in ICMPv6's checksum on a raw socket.
	b, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	_, err = e.conn.WriteTo(b, &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
	return err
}

func (e *icmpEcho) Receive() (netip.Addr, uint16, error) {
	protocol := ipv4.ICMPTypeEchoReply.Protocol()
	if e.v6 {
		protocol = ipv6.ICMPTypeEchoReply.Protocol()
	}
	b := make([]byte, 512)
	for {
		n, from, err := e.conn.ReadFrom(b)
		if err != nil {
			return netip.Addr{}, 0, err
		}
		m, err := icmp.ParseMessage(protocol, b[:n])
		if err != nil {
			continue
		}
		body, ok := m.Body.(*icmp.Echo)
		if !ok || body.ID != e.id || !bytes.Equal(body.Data, e.cookie) {
			continue
		}
		ip, ok := from.(*net.IPAddr)
		if !ok {
			continue
		}
		a, ok := netip.AddrFromSlice(ip.IP)
		if !ok {
			continue
		}
		return a.Unmap(), uint16(body.Seq), nil
	}
}

func (e *icmpEcho) Close() error { return e.conn.Close() }
