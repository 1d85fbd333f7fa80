package kernel

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// decompile reads a rule back from the kernel's expressions. It only has to
// guess: the rule that it comes to is compiled again, and unless that gives
// exactly these expressions they are not of our words (false).
func decompile(exprs []expression) (state.FilterRule, bool) {
	var d decompiler
	for i := range exprs {
		d.read(&exprs[i])
	}
	if d.rule.Action == nil {
		return state.FilterRule{}, false
	}
	again, err := compile(d.rule)
	if err != nil {
		return state.FilterRule{}, false
	}
	same, err := marshal(again)
	return d.rule, err == nil && sameExpressions(exprs, same)
}

// decompiler follows what the register holds.
type decompiler struct {
	rule state.FilterRule
	// load is the expression that filled the register, mask what of it is kept
	// and flip what of it is turned over.
	load       *expression
	mask, flip []byte
	// value is a constant in the register.
	value []byte
	// network and transport are what the rule has made sure of.
	network   byte
	transport string
	// protocol was compared just now: for a field of its header, or as a match
	// of its own; what follows tells.
	protocol string
}

func (d *decompiler) read(e *expression) {
	if d.protocol != "" {
		if e.name == "payload" && e.number("2") == int64(expr.PayloadBaseTransportHeader) {
			d.transport = d.protocol
		} else {
			d.match(state.L4Proto{Proto: d.protocol})
		}
		d.protocol = ""
	}
	if e.name == "meta" && e.number("3") >= 0 { // NFTA_META_SREG: set, not loaded
		d.set()
		return
	}
	switch e.name {
	case "meta", "payload", "rt", "ct", "fib":
		d.load, d.mask, d.flip, d.value = e, nil, nil, nil
	case "bitwise":
		d.mask, d.flip = e.bytes("4.1"), e.bytes("5.1")
	case "cmp":
		if d.load != nil {
			d.compared(e.number("2") == int64(expr.CmpOpNeq), e.bytes("3.1"))
		}
	case "lookup":
		if d.load != nil {
			d.match(state.AddrInSet{V6: d.v6(), Source: d.source(), Not: e.number("5") == unix.NFT_LOOKUP_F_INV, Set: cString(e.bytes("1"))})
		}
	case "immediate":
		if verdict := e.number("2.2.1"); verdict >= 0 {
			d.rule.Action = verdicts[int32(uint32(verdict))]
		} else {
			d.value = e.bytes("2.1")
		}
	case "nat":
		if a, ok := netip.AddrFromSlice(d.value); ok {
			d.rule.Action = state.SourceNAT{To: a}
		} else {
			d.rule.Action = state.KeepSource{V6: d.v6()}
		}
	case "masq":
		d.rule.Action = state.Masquerade{}
	case "reject":
		d.rule.Action = state.ResetTCP{}
	case "notrack":
		d.rule.Action = state.NoTrack{}
	case "exthdr":
		d.rule.Action = state.ClampMSS{}
	}
}

// set makes an action of a mark that is written back.
func (d *decompiler) set() {
	if d.load == nil || len(d.mask) != 4 {
		return
	}
	bits := ^binary.NativeEndian.Uint32(d.mask)
	if binary.NativeEndian.Uint32(d.flip) == 0 {
		d.rule.Action = state.TakeMark{Bits: bits}
	} else {
		d.rule.Action = state.AddMark{Bits: bits}
	}
}

var verdicts = map[int32]state.Action{
	int32(expr.VerdictAccept): state.Accept{},
	int32(expr.VerdictDrop):   state.Drop{},
	int32(expr.VerdictReturn): state.Return{},
}

func (d *decompiler) match(m state.Match) { d.rule.Matches = append(d.rule.Matches, m) }

func (d *decompiler) v6() bool { return d.network == unix.NFPROTO_IPV6 }

// source tells whether the address in the register is a source address.
func (d *decompiler) source() bool {
	offset, _ := addressField(d.v6(), true)
	return d.load.number("3") == int64(offset)
}

// compared makes a match of a comparison of what was loaded.
func (d *decompiler) compared(not bool, data []byte) {
	switch d.load.name {
	case "meta":
		d.comparedMeta(expr.MetaKey(d.load.number("2")), not, data)
	case "payload":
		if d.load.number("2") == int64(expr.PayloadBaseNetworkHeader) {
			d.comparedAddress(not, data)
			return
		}
		if len(data) == 2 {
			d.match(state.Port{Proto: d.transport, Source: d.load.number("3") == 0, Port: binary.BigEndian.Uint16(data)})
		} else {
			d.match(state.TCPSyn{})
		}
	case "rt":
		if a, ok := netip.AddrFromSlice(data); ok {
			d.match(state.NextHop{Not: not, Addr: a})
		}
	case "ct":
		d.comparedConntrack(expr.CtKey(d.load.number("2")), not)
	case "fib":
		d.match(state.SourceLocal{Not: not})
	}
}

func (d *decompiler) comparedMeta(key expr.MetaKey, not bool, data []byte) {
	switch key {
	case expr.MetaKeyNFPROTO:
		if len(data) == 1 {
			d.network = data[0]
		}
	case expr.MetaKeyL4PROTO:
		for name, number := range protocols {
			if len(data) == 1 && data[0] == number {
				d.protocol = name
			}
		}
	case expr.MetaKeyMARK:
		if len(data) == 4 {
			d.match(state.MarkIs{Not: not, Mark: binary.NativeEndian.Uint32(data)})
		}
	case expr.MetaKeyIIFNAME:
		d.match(state.InInterface{Name: cString(data), Not: not})
	case expr.MetaKeyOIFNAME:
		d.match(state.OutInterface{Name: cString(data), Not: not})
	}
}

func (d *decompiler) comparedAddress(not bool, data []byte) {
	length := 8 * len(data)
	if d.mask != nil {
		length = 0
		for _, b := range d.mask {
			length += bits.OnesCount8(b)
		}
	}
	_, size := addressField(d.v6(), true)
	whole := make([]byte, size)
	copy(whole, data)
	a, _ := netip.AddrFromSlice(whole)
	d.match(state.AddrIs{Source: d.source(), Not: not, Prefix: netip.PrefixFrom(a, length)})
}

func (d *decompiler) comparedConntrack(key expr.CtKey, not bool) {
	var mask uint32
	if len(d.mask) == 4 {
		mask = binary.NativeEndian.Uint32(d.mask)
	}
	switch key {
	case expr.CtKeySTATE:
		var states []string
		// In the order in which nft prints them: that of the bits.
		for bit := uint32(1); bit != 0; bit <<= 1 {
			for name, b := range ctStates {
				if b == bit && mask&bit != 0 {
					states = append(states, name)
				}
			}
		}
		d.match(state.CtState{States: states})
	case expr.CtKeySTATUS:
		for name, bit := range ctStatus {
			if mask == bit {
				d.match(state.CtStatus{Flag: name, Not: !not})
			}
		}
	case expr.CtKeyDIRECTION:
		d.match(state.CtOriginal{})
	}
}
