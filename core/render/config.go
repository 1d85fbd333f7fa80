package render

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/kilo-overlay/kilo/core/model"
)

// Config is a WireGuard configuration without its private key.
type Config struct {
	// ListenPort is printed in an [Interface] section of its own; 0: no such
	// section.
	ListenPort uint16
	Peers      []Peer
	// Notes say what a person should know about this configuration: what was
	// left out and why. Text prints them as comments.
	Notes []string
}

// Peer is one [Peer] section.
type Peer struct {
	// Comment names the party for people; "": no comment.
	Comment string
	// Name is the party's own: a node's, or a Peer's.
	Name         string
	Key          model.Key
	PresharedKey model.PresharedKey
	// Endpoint is zero for a party that has to speak first.
	Endpoint   model.Endpoint
	AllowedIPs []netip.Prefix
	Keepalive  time.Duration // rounded up to seconds; 0: off
}

// Text returns the configuration in the form that "wg setconf" reads. It holds
// the peers' preshared keys, without which it would not work: it is for a
// file or a terminal, never for a log.
func (c Config) Text() string {
	var b strings.Builder
	for _, note := range c.Notes {
		comment(&b, note)
	}
	if len(c.Notes) > 0 && (c.ListenPort != 0 || len(c.Peers) > 0) {
		b.WriteByte('\n')
	}
	if c.ListenPort != 0 {
		fmt.Fprintf(&b, "[Interface]\nListenPort = %d\n", c.ListenPort)
	}
	for i := range c.Peers {
		if i > 0 || c.ListenPort != 0 {
			b.WriteByte('\n')
		}
		c.Peers[i].write(&b)
	}
	return b.String()
}

func (p *Peer) write(b *strings.Builder) {
	if p.Comment != "" {
		comment(b, p.Comment)
	}
	fmt.Fprintf(b, "[Peer]\nPublicKey = %s\n", p.Key)
	if !p.PresharedKey.IsZero() {
		fmt.Fprintf(b, "PresharedKey = %s\n", p.PresharedKeyText())
	}
	if len(p.AllowedIPs) > 0 {
		fmt.Fprintf(b, "AllowedIPs = %s\n", join(p.AllowedIPs, ", "))
	}
	if !p.Endpoint.IsZero() {
		fmt.Fprintf(b, "Endpoint = %s\n", p.Endpoint)
	}
	if s := p.KeepaliveSeconds(); s > 0 {
		fmt.Fprintf(b, "PersistentKeepalive = %d\n", s)
	}
}

// PresharedKeyText is the secret in base64, for a configuration.
func (p *Peer) PresharedKeyText() string {
	// It has the form of any other key; Key's String is the one that shows it.
	return model.Key(p.PresharedKey.Bytes()).String()
}

// KeepaliveSeconds is the keepalive as WireGuard counts it; 0: off.
func (p *Peer) KeepaliveSeconds() int {
	return int((p.Keepalive + time.Second - 1) / time.Second)
}

// comment writes text as one comment line. What people wrote into annotations
// may hold anything; a line break would begin a setting of their choice.
func comment(b *strings.Builder, text string) {
	b.WriteString("# " + oneLine(text) + "\n")
}

// oneLine replaces control characters by spaces.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// texts prints each value.
func texts[T fmt.Stringer](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}

func join[T fmt.Stringer](values []T, separator string) string {
	return strings.Join(texts(values), separator)
}

// union merges prefixes, sorted and each once.
func union(lists ...[]netip.Prefix) []netip.Prefix {
	out := slices.Concat(lists...)
	for i := range out {
		out[i] = out[i].Masked()
	}
	slices.SortFunc(out, comparePrefix)
	return slices.Compact(out)
}

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// without takes single addresses out of prefixes. A prefix that holds one is
// split into the largest parts that do not.
func without(prefixes []netip.Prefix, addresses []netip.Addr) []netip.Prefix {
	out := slices.Clone(prefixes)
	for _, a := range addresses {
		var rest []netip.Prefix
		for _, p := range out {
			rest = append(rest, exclude(p, a)...)
		}
		out = rest
	}
	slices.SortFunc(out, comparePrefix)
	return out
}

func exclude(p netip.Prefix, a netip.Addr) []netip.Prefix {
	if !p.Contains(a) {
		return []netip.Prefix{p}
	}
	var parts []netip.Prefix
	for bits := p.Bits() + 1; bits <= a.BitLen(); bits++ {
		// The half of this length that a is not in.
		parts = append(parts, netip.PrefixFrom(flip(a, bits-1), bits).Masked())
	}
	return parts
}

// flip inverts one bit of a, counted from the left.
func flip(a netip.Addr, bit int) netip.Addr {
	raw := a.AsSlice()
	raw[bit/8] ^= 1 << (7 - bit%8)
	flipped, _ := netip.AddrFromSlice(raw)
	return flipped
}
