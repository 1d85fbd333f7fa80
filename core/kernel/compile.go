package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// reg is the register that all our expressions pass values through
// (NFT_REG_1): each match loads it and compares it at once.
const reg = unix.NFT_REG_1

// compiler turns one rule into the kernel's expressions, the same that nft(8)
// makes of the rule's text: nft prints back what it recognises. See
// "nft --debug=netlink".
type compiler struct {
	exprs []expr.Any
	// network and transport are what the rule has already made sure of; a
	// field of a header means nothing before.
	network   byte   // NFPROTO_IPV4, NFPROTO_IPV6; 0: neither
	transport string // "tcp", "udp"; "": neither
	err       error
}

// compile returns the expressions of a rule.
func compile(r state.FilterRule) ([]expr.Any, error) {
	var c compiler
	for _, m := range r.Matches {
		c.match(m)
	}
	c.action(r.Action)
	if c.err != nil {
		return nil, fmt.Errorf("rule %q: %w", r, c.err)
	}
	return c.exprs, nil
}

func (c *compiler) add(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

func (c *compiler) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// cmp compares the register.
func (c *compiler) cmp(not bool, data []byte) {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	c.add(&expr.Cmp{Op: op, Register: reg, Data: data})
}

// masked keeps some bits of the register.
func (c *compiler) masked(mask []byte) {
	c.add(&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))})
}

func (c *compiler) meta(key expr.MetaKey) { c.add(&expr.Meta{Key: key, Register: reg}) }

func (c *compiler) match(m state.Match) {
	switch m := m.(type) {
	case state.InInterface:
		c.meta(expr.MetaKeyIIFNAME)
		c.cmp(m.Not, interfaceName(m.Name))
	case state.OutInterface:
		c.meta(expr.MetaKeyOIFNAME)
		c.cmp(m.Not, interfaceName(m.Name))
	case state.AddrInSet:
		c.address(m.V6, m.Source, 0)
		c.add(&expr.Lookup{SourceRegister: reg, SetName: m.Set, Invert: m.Not})
	case state.AddrIs:
		c.prefix(m)
	case state.NextHop:
		key := expr.RtNexthop4
		if m.Addr.Is6() {
			key = expr.RtNexthop6
		}
		c.add(&expr.Rt{Register: reg, Key: key})
		c.cmp(m.Not, m.Addr.AsSlice())
	case state.MarkIs:
		c.meta(expr.MetaKeyMARK)
		c.cmp(m.Not, native32(m.Mark))
	case state.L4Proto:
		c.protocol(m.Proto)
	case state.Port:
		c.needTransport(m.Proto)
		offset := uint32(2)
		if m.Source {
			offset = 0
		}
		c.add(&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
		c.cmp(false, binary.BigEndian.AppendUint16(nil, m.Port))
	case state.TCPSyn:
		c.needTransport("tcp")
		c.add(&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1})
		c.masked([]byte{tcpSyn | tcpRst})
		c.cmp(false, []byte{tcpSyn})
	case state.CtState:
		var bits uint32
		for _, s := range m.States {
			b, ok := ctStates[s]
			if !ok {
				c.fail("no conntrack state %q", s)
			}
			bits |= b
		}
		c.add(&expr.Ct{Key: expr.CtKeySTATE, Register: reg})
		c.masked(native32(bits))
		c.cmp(true, native32(0))
	case state.CtStatus:
		bit, ok := ctStatus[m.Flag]
		if !ok {
			c.fail("no conntrack status %q", m.Flag)
		}
		c.add(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg})
		c.masked(native32(bit))
		c.cmp(!m.Not, native32(0))
	case state.CtOriginal:
		c.add(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg})
		c.cmp(false, []byte{ctDirOriginal})
	case state.SourceLocal:
		c.add(&expr.Fib{Register: reg, FlagSADDR: true, ResultADDRTYPE: true})
		c.cmp(m.Not, native32(unix.RTN_LOCAL))
	default:
		c.fail("no expressions for the match %q (%T)", m, m)
	}
}

func (c *compiler) action(a state.Action) {
	verdict := func(k expr.VerdictKind) { c.add(&expr.Verdict{Kind: k}) }
	switch a := a.(type) {
	case state.Accept:
		verdict(expr.VerdictAccept)
	case state.Drop:
		verdict(expr.VerdictDrop)
	case state.Return:
		verdict(expr.VerdictReturn)
	case state.ResetTCP:
		c.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	case state.SourceNAT:
		c.add(&expr.Immediate{Register: reg, Data: a.To.AsSlice()})
		c.snat(a.To.Is6())
	case state.KeepSource:
		c.address(a.V6, true, 0)
		c.snat(a.V6)
	case state.Masquerade:
		c.add(&expr.Masq{})
	case state.AddMark:
		c.setMark(^a.Bits, a.Bits)
	case state.TakeMark:
		c.setMark(^a.Bits, 0)
	case state.NoTrack:
		c.add(&expr.Notrack{})
	case state.ClampMSS:
		c.add(&expr.Rt{Register: reg, Key: expr.RtTCPMSS},
			&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 2, Size: 2},
			&expr.Exthdr{SourceRegister: reg, Type: tcpOptMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt})
	default:
		c.fail("no expressions for the action %q (%T)", a, a)
	}
}

// setMark keeps some bits of the packet mark and flips others.
func (c *compiler) setMark(keep, flip uint32) {
	c.meta(expr.MetaKeyMARK)
	c.add(&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native32(keep), Xor: native32(flip)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg})
}

func (c *compiler) snat(v6 bool) {
	c.add(&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(networkProtocol(v6)), RegAddrMin: reg})
}

// address loads the first length bytes of a source or destination address; 0: all.
func (c *compiler) address(v6, source bool, length uint32) {
	if want := networkProtocol(v6); c.network != want {
		if c.network != 0 {
			c.fail("IPv4 and IPv6 in one rule: it never matches")
		}
		c.network = want
		c.meta(expr.MetaKeyNFPROTO)
		c.cmp(false, []byte{want})
	}
	offset, size := addressField(v6, source)
	if length == 0 {
		length = size
	}
	c.add(&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length})
}

// addressField is where an address stands in the IPv4 or IPv6 header.
func addressField(v6, source bool) (offset, size uint32) {
	switch {
	case v6 && source:
		return 8, 16
	case v6:
		return 24, 16
	case source:
		return 12, 4
	}
	return 16, 4
}

// prefix compares with a prefix: whole bytes are loaded and compared as they
// are, others masked first.
func (c *compiler) prefix(m state.AddrIs) {
	p := m.Prefix.Masked()
	v6, data := p.Addr().Is6(), p.Addr().AsSlice()
	switch bits := p.Bits(); {
	case bits < 1:
		c.fail("%s is every address: leave the match out", p)
	case bits%8 == 0:
		c.address(v6, m.Source, uint32(bits/8))
		c.cmp(m.Not, data[:bits/8])
	default:
		c.address(v6, m.Source, 0)
		c.masked(netmask(bits, len(data)))
		c.cmp(m.Not, data)
	}
}

func netmask(bits, size int) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

func (c *compiler) protocol(name string) {
	number, ok := protocols[name]
	if !ok {
		c.fail("no protocol %q", name)
	}
	c.meta(expr.MetaKeyL4PROTO)
	c.cmp(false, []byte{number})
}

// needTransport makes sure of the transport header before one of its fields.
func (c *compiler) needTransport(name string) {
	if name != "tcp" && name != "udp" {
		c.fail("ports are of tcp or udp, not of %q", name)
	}
	if c.transport != name {
		if c.transport != "" {
			c.fail("%s and %s in one rule: it never matches", c.transport, name)
		}
		c.transport = name
		c.protocol(name)
	}
}

func networkProtocol(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// interfaceName is padded with zeros to IFNAMSIZ, and so compared in full.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b[:unix.IFNAMSIZ-1], name)
	return b
}

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

const (
	tcpFlags      = 13 // offset of the flags in the TCP header
	tcpSyn        = 0x02
	tcpRst        = 0x04
	tcpOptMSS     = 2 // TCP option "maximum segment size" (RFC 9293)
	ctDirOriginal = 0 // IP_CT_DIR_ORIGINAL
)

var protocols = map[string]byte{
	"tcp":       unix.IPPROTO_TCP,
	"udp":       unix.IPPROTO_UDP,
	"icmp":      unix.IPPROTO_ICMP,
	"ipv6-icmp": unix.IPPROTO_ICMPV6,
}

// The bits of "ct state" and "ct status" (IPS_SRC_NAT, IPS_DST_NAT).
var (
	ctStates = map[string]uint32{
		"invalid":     expr.CtStateBitINVALID,
		"established": expr.CtStateBitESTABLISHED,
		"related":     expr.CtStateBitRELATED,
		"new":         expr.CtStateBitNEW,
		"untracked":   expr.CtStateBitUNTRACKED,
	}
	ctStatus = map[string]uint32{"snat": 1 << 4, "dnat": 1 << 5}
)

// element is one end of an interval in a set.
type element struct {
	key []byte
	end bool
}

// intervals are the elements of a set of prefixes as nft writes them: each
// prefix starts at its first address and ends before the next after its last.
// What lies below the first prefix is an interval too, one that does not match.
func intervals(s state.Set) ([]element, error) {
	var out []element
	prefixes := slices.Clone(s.Elements)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for i, p := range prefixes {
		p = p.Masked()
		if p.Addr().Is6() != s.V6 || !p.IsValid() {
			return nil, fmt.Errorf("set %s: %s is of the wrong family", s.Name, p)
		}
		if i > 0 && prefixes[i-1].Overlaps(p) {
			return nil, fmt.Errorf("set %s: %s and %s overlap", s.Name, prefixes[i-1], p)
		}
		start := p.Addr()
		if i == 0 && !start.IsUnspecified() {
			out = append(out, element{key: make([]byte, start.BitLen()/8), end: true})
		}
		out = append(out, element{key: start.AsSlice()})
		if next := last(p).Next(); next.IsValid() {
			out = append(out, element{key: next.AsSlice(), end: true})
		}
	}
	return out, nil
}

// last is the last address of a masked prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i, m := range netmask(p.Bits(), len(b)) {
		b[i] |= ^m
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
