package state

import (
	"fmt"
	"net/netip"
	"strings"
)

// Filter is the wanted table inet kilo. String prints it as "nft list table"
// does, up to white space; core/kernel compiles it.
type Filter struct {
	Sets   []Set
	Chains []Chain
}

// IsEmpty tells whether there is to be no table.
func (f Filter) IsEmpty() bool { return len(f.Sets) == 0 && len(f.Chains) == 0 }

// Set is a named set of prefixes of one family. Elements are sorted and do not
// overlap.
type Set struct {
	Name     string
	V6       bool
	Elements []netip.Prefix
}

// ChainType is a base chain's type.
type ChainType string

// The chain types we use.
const (
	FilterChain ChainType = "filter"
	NATChain    ChainType = "nat"
)

// Chain is a base chain with policy accept. Priority is a number, since only
// a few have names that nft prints.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     string // "forward", "output", "postrouting", "prerouting", "input"
	Priority int
	Rules    []FilterRule
}

// FilterRule is one rule: all Matches must hold, then Action happens. Comment
// is stored with the rule (at most 120 bytes) and tells a person why it is there.
type FilterRule struct {
	Matches []Match
	Action  Action
	Comment string
}

// Match is a condition in nft's words.
type Match interface {
	fmt.Stringer
	match()
}

// Action is a verdict or statement in nft's words.
type Action interface {
	fmt.Stringer
	action()
}

type (
	// InInterface matches the incoming interface's name.
	InInterface struct {
		Name string
		Not  bool
	}
	// OutInterface matches the outgoing interface's name.
	OutInterface struct {
		Name string
		Not  bool
	}
	// AddrInSet matches the source or destination against a Set of this filter.
	AddrInSet struct {
		V6     bool
		Source bool // else the destination
		Not    bool
		Set    string
	}
	// AddrIs matches the source or destination against one prefix.
	AddrIs struct {
		Source bool
		Not    bool
		Prefix netip.Prefix
	}
	// NextHop matches the routed packet's next hop ("rt ip nexthop"): the
	// gateway, or the destination itself where the route names none.
	NextHop struct {
		Not  bool
		Addr netip.Addr
	}
	// MarkIs compares the packet mark in full.
	MarkIs struct {
		Not  bool
		Mark uint32
	}
	// L4Proto matches the transport protocol: "tcp", "udp", "icmp", "ipv6-icmp".
	// ResetTCP needs it before; Port and TCPSyn bring their own.
	L4Proto struct{ Proto string }
	// Port matches a TCP or UDP port and implies the protocol.
	Port struct {
		Proto  string // "tcp" or "udp"
		Source bool
		Port   uint16
	}
	// TCPSyn matches segments with SYN and without RST.
	TCPSyn struct{}
	// CtState matches any of conntrack's states: "invalid", "established",
	// "related", "new", "untracked".
	CtState struct{ States []string }
	// CtStatus matches a conntrack status bit: "snat" or "dnat".
	CtStatus struct {
		Not  bool
		Flag string
	}
	// CtOriginal matches packets in the direction that opened the connection.
	CtOriginal struct{}
	// SourceLocal matches packets whose source is an address of this node.
	SourceLocal struct{ Not bool }
)

// Unknown stands, as a Match or an Action, for what an observer found in our
// table and has no word for: somebody else wrote it. It is never wanted, so a
// table with one in it is replaced.
type Unknown struct{ Text string }

type (
	// Accept ends this chain.
	Accept struct{}
	// Drop drops.
	Drop struct{}
	// Return leaves the rest of the chain.
	Return struct{}
	// ResetTCP answers with a TCP reset. Only in input, forward and output.
	ResetTCP struct{}
	// SourceNAT translates the source to To.
	SourceNAT struct{ To netip.Addr }
	// KeepSource binds a connection to its own source, so that no later chain
	// translates it: "snat to ip saddr".
	KeepSource struct{ V6 bool }
	// Masquerade translates the source to the outgoing interface's address.
	Masquerade struct{}
	// ClampMSS lowers a SYN's maximum segment size to what both ways' routes
	// carry: "tcp option maxseg size set rt mtu".
	ClampMSS struct{}
	// AddMark sets bits of the packet mark, the others stay; the chain goes on.
	AddMark struct{ Bits uint32 }
	// TakeMark clears bits of the packet mark, the others stay; the chain goes on.
	TakeMark struct{ Bits uint32 }
	// NoTrack has a packet that conntrack found invalid count as untracked; one
	// that has a connection keeps it. The chain goes on.
	NoTrack struct{}
)

func (InInterface) match()  {}
func (OutInterface) match() {}
func (AddrInSet) match()    {}
func (AddrIs) match()       {}
func (NextHop) match()      {}
func (MarkIs) match()       {}
func (L4Proto) match()      {}
func (Port) match()         {}
func (TCPSyn) match()       {}
func (CtState) match()      {}
func (CtStatus) match()     {}
func (CtOriginal) match()   {}
func (SourceLocal) match()  {}
func (Unknown) match()      {}

func (Accept) action()     {}
func (Drop) action()       {}
func (Return) action()     {}
func (ResetTCP) action()   {}
func (SourceNAT) action()  {}
func (KeepSource) action() {}
func (Masquerade) action() {}
func (ClampMSS) action()   {}
func (AddMark) action()    {}
func (TakeMark) action()   {}
func (NoTrack) action()    {}
func (Unknown) action()    {}

func not(b bool) string {
	if b {
		return "!= "
	}
	return ""
}

func family(v6 bool) string {
	if v6 {
		return "ip6"
	}
	return "ip"
}

func side(source bool) string {
	if source {
		return "saddr"
	}
	return "daddr"
}

func (m InInterface) String() string  { return fmt.Sprintf("iifname %s%q", not(m.Not), m.Name) }
func (m OutInterface) String() string { return fmt.Sprintf("oifname %s%q", not(m.Not), m.Name) }
func (m AddrInSet) String() string {
	return fmt.Sprintf("%s %s %s@%s", family(m.V6), side(m.Source), not(m.Not), m.Set)
}
func (m AddrIs) String() string {
	return fmt.Sprintf("%s %s %s%s", family(!m.Prefix.Addr().Is4()), side(m.Source), not(m.Not), prefixText(m.Prefix))
}
func (m NextHop) String() string {
	return fmt.Sprintf("rt %s nexthop %s%s", family(!m.Addr.Is4()), not(m.Not), m.Addr)
}
func (m MarkIs) String() string  { return fmt.Sprintf("meta mark %s0x%08x", not(m.Not), m.Mark) }
func (m L4Proto) String() string { return "meta l4proto " + m.Proto }
func (m Port) String() string {
	f := "dport"
	if m.Source {
		f = "sport"
	}
	return fmt.Sprintf("%s %s %d", m.Proto, f, m.Port)
}
func (TCPSyn) String() string { return "tcp flags syn / syn,rst" }

// String lists the states in nft's order, whatever m's.
func (m CtState) String() string { return "ct state " + strings.Join(orderCtStates(m.States), ",") }
func (m CtStatus) String() string {
	if m.Not {
		return "ct status ! " + m.Flag
	}
	return "ct status " + m.Flag
}
func (CtOriginal) String() string { return "ct direction original" }
func (m SourceLocal) String() string {
	return "fib saddr type " + not(m.Not) + "local"
}
func (u Unknown) String() string { return u.Text }

func (Accept) String() string   { return "accept" }
func (Drop) String() string     { return "drop" }
func (Return) String() string   { return "return" }
func (ResetTCP) String() string { return "reject with tcp reset" }
func (a SourceNAT) String() string {
	return fmt.Sprintf("snat %s to %s", family(!a.To.Is4()), a.To)
}
func (a KeepSource) String() string {
	f := family(a.V6)
	return fmt.Sprintf("snat %s to %s saddr", f, f)
}
func (Masquerade) String() string { return "masquerade" }
func (ClampMSS) String() string   { return "tcp option maxseg size set rt mtu" }
func (a AddMark) String() string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", a.Bits)
}
func (a TakeMark) String() string {
	return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^a.Bits)
}
func (NoTrack) String() string { return "notrack" }

// prefixText prints a host prefix as nft does: without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
