package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// The types here are flag values: each refuses what it cannot mean, with a
// reason, so that nothing later has to.

// choice is one word of a few.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "word" }
func (c *choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("possible values: %s", strings.Join(c.allowed, ", "))
	}
	c.value = s
	return nil
}

// falseOnly is a flag of Kilo's that an add-on can only be told false.
type falseOnly struct{ why string }

func (*falseOnly) String() string { return "false" }
func (*falseOnly) Type() string   { return "bool" }
func (f *falseOnly) Set(s string) error {
	if on, err := strconv.ParseBool(s); err != nil || on {
		return fmt.Errorf("only false is possible: %s", f.why)
	}
	return nil
}

// prefixList is a list of prefixes, separated by commas or given several
// times. A bare address means itself alone.
type prefixList struct {
	prefixes     []netip.Prefix
	onePerFamily bool
	set          bool
}

func (p *prefixList) String() string {
	words := make([]string, len(p.prefixes))
	for i, q := range p.prefixes {
		words[i] = q.String()
	}
	return strings.Join(words, ",")
}
func (*prefixList) Type() string { return "prefixes" }
func (p *prefixList) Set(s string) error {
	var add []netip.Prefix
	for _, word := range strings.Split(s, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		q, err := parsePrefix(word)
		if err != nil {
			return err
		}
		if q != q.Masked() {
			return fmt.Errorf("%s has host bits: did you mean %s?", q, q.Masked())
		}
		add = append(add, q)
	}
	if !p.set { // the default goes
		p.prefixes, p.set = nil, true
	}
	p.prefixes = append(p.prefixes, add...)
	if p.onePerFamily {
		for i, q := range p.prefixes {
			for _, r := range p.prefixes[:i] {
				if q.Addr().Is4() == r.Addr().Is4() {
					return fmt.Errorf("%s and %s are of one family: at most one of each", r, q)
				}
			}
		}
	}
	return nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%s has a zone: want a prefix such as 10.0.0.0/24", s)
		}
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is no prefix: want one such as 10.0.0.0/24", s)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%s is an IPv4 address in IPv6 form: write it as IPv4", s)
	}
	return p, nil
}

// port is a UDP port.
type port uint16

func (p *port) String() string { return strconv.Itoa(int(*p)) }
func (*port) Type() string     { return "port" }
func (p *port) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return errors.New("want a UDP port from 1 to 65535")
	}
	*p = port(n)
	return nil
}

// address is where to listen. Without a host, as in ":1107", that is every
// address of the node.
type address netip.AddrPort

func (a *address) String() string {
	if !netip.AddrPort(*a).IsValid() {
		return ""
	}
	return netip.AddrPort(*a).String()
}
func (*address) Type() string { return "address:port" }
func (a *address) Set(s string) error {
	if host, rest, ok := strings.Cut(s, ":"); ok && host == "" {
		s = "[::]:" + rest
	}
	at, err := netip.ParseAddrPort(s)
	if err != nil || at.Port() == 0 {
		return errors.New("want address:port such as 10.0.0.1:1107, or :1107 for every address")
	}
	*a = address(at)
	return nil
}

// mtu is a number of bytes; 0 means auto.
type mtu int

func (m *mtu) String() string {
	if *m == 0 {
		return "auto"
	}
	return strconv.Itoa(int(*m))
}
func (*mtu) Type() string { return "bytes" }
func (m *mtu) Set(s string) error {
	if s == "auto" {
		*m = 0
		return nil
	}
	// 576: what every IPv4 host must take (RFC 791). Above: an IP packet less
	// WireGuard's overhead.
	n, err := strconv.Atoi(s)
	if err != nil || n < 576 || n > 65455 {
		return errors.New("want auto, or a number of bytes from 576 to 65455 (below 1280 the link carries no IPv6)")
	}
	*m = mtu(n)
	return nil
}

// keepalive is a number of seconds, as in the annotation, or a duration.
type keepalive time.Duration

func (k *keepalive) String() string { return strconv.Itoa(int(time.Duration(*k) / time.Second)) }
func (*keepalive) Type() string     { return "seconds" }
func (k *keepalive) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return errors.New("want a number of seconds from 0 (off) to 65535")
	}
	*k = keepalive(time.Duration(n) * time.Second)
	return nil
}

// endpoint is host:port, where the host may be a name.
type endpoint struct{ model.Endpoint }

func (*endpoint) Type() string { return "host:port" }
func (e *endpoint) Set(s string) error {
	if at, err := netip.ParseAddrPort(s); err == nil {
		switch a := at.Addr().Unmap(); {
		case at.Port() == 0:
			return errors.New("port 0 reaches nobody")
		case !a.IsGlobalUnicast() || a.Zone() != "":
			return fmt.Errorf("%s is an address that nobody else can reach", a)
		default:
			e.Endpoint = model.Endpoint{Addr: a, Port: at.Port()}
		}
		return nil
	}
	host, text, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(text, 10, 16)
	if !ok || err != nil || n == 0 || !hostname(host) {
		return errors.New("want host:port, such as 203.0.113.9:51820, [2001:db8::9]:51820 or gw.example.org:51820")
	}
	e.Endpoint = model.Endpoint{Host: host, Port: uint16(n)}
	return nil
}

// hostname tells whether s is a DNS name; one that looks like an address is not.
func hostname(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		for _, c := range l {
			if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return false
			}
		}
	}
	_, err := strconv.Atoi(labels[len(labels)-1])
	return err != nil
}

// internalIPs are addresses with the lengths of their subnets, or "-" for none.
type internalIPs struct {
	addresses []netip.Prefix
	none      bool
}

func (p *internalIPs) String() string {
	if p.none {
		return "-"
	}
	return (&prefixList{prefixes: p.addresses}).String()
}
func (*internalIPs) Type() string { return "addresses" }
func (p *internalIPs) Set(s string) error {
	if s == "-" {
		*p = internalIPs{none: true}
		return nil
	}
	var out internalIPs
	for _, word := range strings.Split(s, ",") {
		q, err := parsePrefix(strings.TrimSpace(word))
		if err != nil {
			return fmt.Errorf("%q is no address with the length of its subnet: want one such as 10.0.0.1/24, or \"-\" for none", word)
		}
		if !q.Addr().IsGlobalUnicast() {
			return fmt.Errorf("%s is an address that no other node can reach", q.Addr())
		}
		for _, r := range out.addresses {
			if r.Addr().Is4() == q.Addr().Is4() {
				return fmt.Errorf("%s and %s are of one family: at most one of each", r, q)
			}
		}
		out.addresses = append(out.addresses, q)
	}
	*p = out
	return nil
}
