package state

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
)

// String prints s normalized, one line for each thing, in the words of ip(8)
// and wg(8); the filter follows as "nft list table" prints it. It ends with a
// newline unless it is empty.
func (s State) String() string {
	s.Normalize()
	var b strings.Builder
	for i := range s.Links {
		l := &s.Links[i]
		b.WriteString(l.String())
		b.WriteByte('\n')
		if l.Tunnel != nil {
			b.WriteString("  " + l.Tunnel.String() + "\n")
			for j := range l.Tunnel.Peers {
				b.WriteString("  " + l.Tunnel.Peers[j].String() + "\n")
			}
		}
		if l.VXLAN != nil {
			b.WriteString("  " + l.VXLAN.String() + "\n")
			for _, r := range l.VXLAN.Remotes {
				b.WriteString("  " + r.String() + "\n")
			}
		}
	}
	for i := range s.Routes {
		b.WriteString(s.Routes[i].String())
		b.WriteByte('\n')
	}
	for i := range s.Rules {
		b.WriteString(s.Rules[i].String())
		b.WriteByte('\n')
	}
	b.WriteString(s.Filter.String())
	return b.String()
}

// String prints the link itself in one line, without what Tunnel and VXLAN say.
func (l Link) String() string {
	w := words{"link", l.Name, string(l.Kind)}
	if l.Kind != Loopback {
		w.add("mtu", strconv.Itoa(l.MTU))
	}
	for _, a := range l.Addresses {
		w.add("addr", a.String())
	}
	if l.Loose {
		w.add("loose")
	}
	if l.Down {
		w.add("down")
	}
	return w.String()
}

// String prints the device's own settings in one line, without the peers.
func (t Tunnel) String() string {
	w := words{"tunnel", "key", shortKey(t.Key), "port", strconv.Itoa(int(t.Port))}
	if t.Mark != 0 {
		w.add("mark", hex(t.Mark))
	}
	return w.String()
}

// String prints the peer in one line. Of a preshared key it shows a fingerprint.
func (p Peer) String() string {
	w := words{"peer", p.label()}
	w.addValid("endpoint", p.Endpoint)
	if p.Keepalive != 0 {
		w.add("keepalive", p.Keepalive.String())
	}
	if !p.PresharedKey.IsZero() {
		w.add("psk", p.PresharedKey.String())
	}
	if len(p.AllowedIPs) > 0 {
		w.add("allowed")
		w.addPrefixes("", p.AllowedIPs)
	}
	if p.Alive {
		w.add("alive")
	}
	if p.Moved {
		w.add("moved")
	}
	return w.String()
}

// label is the peer's name, where it has one, and its key.
func (p *Peer) label() string {
	if p.Name == "" {
		return shortKey(p.Key)
	}
	return p.Name + " (" + shortKey(p.Key) + ")"
}

// String prints the settings in one line, without the remotes.
func (v VXLANConfig) String() string {
	w := words{"vxlan", "id", strconv.Itoa(int(v.ID)), "port", strconv.Itoa(int(v.Port)), "dev", v.Device}
	w.addValid("local", v.Local)
	if v.MAC != "" {
		w.add("lladdr", v.MAC)
	}
	return w.String()
}

// String prints the neighbour and the forwarding entry in one line.
func (r VXLANRemote) String() string {
	return fmt.Sprintf("remote %s lladdr %s dst %s", r.Inner, r.MAC, r.Outer)
}

// String prints the route in one line, its words in ip's order.
func (r Route) String() string {
	w := words{"route", "table", tableName(r.Table)}
	if r.Type != Unicast {
		w.add(r.Type.String())
	}
	w.add(r.Dst.String())
	w.addValid("via", r.Via)
	if r.Device != "" {
		w.add("dev", r.Device)
	}
	w.addValid("src", r.Source)
	if r.Metric != 0 {
		w.add("metric", strconv.FormatUint(uint64(r.Metric), 10))
	}
	if r.OnLink {
		w.add("onlink")
	}
	if r.MTU != 0 {
		w.add("mtu", strconv.Itoa(r.MTU))
	}
	return w.String()
}

// String prints the rule in one line, its words in ip's order.
func (r Rule) String() string {
	w := words{"rule", strconv.Itoa(r.Priority), "inet"}
	if r.V6 {
		w[2] = "inet6"
	}
	if r.Invert {
		w.add("not")
	}
	w.addValid("from", r.From)
	if r.Mark != 0 {
		w.add("fwmark", hex(r.Mark))
	}
	if r.IIF != "" {
		w.add("iif", r.IIF)
	}
	if r.Proto != "" {
		w.add("ipproto", r.Proto)
	}
	if r.SrcPort != 0 {
		w.add("sport", strconv.Itoa(int(r.SrcPort)))
	}
	if r.DstPort != 0 {
		w.add("dport", strconv.Itoa(int(r.DstPort)))
	}
	w.add("lookup", tableName(r.Table))
	return w.String()
}

// String says what is done to which link.
func (c SetLink) String() string {
	s := "set " + c.Link.String()
	if c.Link.Tunnel != nil {
		s += " " + c.Link.Tunnel.String()
	}
	if c.Link.VXLAN != nil {
		s += " " + c.Link.VXLAN.String()
		for _, r := range c.Link.VXLAN.Remotes {
			s += " " + r.String()
		}
	}
	return s
}

// String says which link goes.
func (c DeleteLink) String() string { return "delete link " + c.Name }

// String says which peer of which link, and what is written that may differ.
// Of a preshared key it shows a fingerprint.
func (c SetPeer) String() string {
	w := words{"set peer", c.Peer.label(), "on", c.Link}
	if c.Create {
		w.add("create")
	}
	if c.SetEndpoint {
		w.addValid("endpoint", c.Peer.Endpoint)
	}
	if c.Peer.Keepalive != 0 {
		w.add("keepalive", c.Peer.Keepalive.String())
	}
	if !c.Peer.PresharedKey.IsZero() {
		w.add("psk", c.Peer.PresharedKey.String())
	}
	switch {
	case c.ReplaceAllowedIPs:
		w.add("allowed", "=")
		w.addPrefixes("", c.Peer.AllowedIPs)
	case len(c.AddAllowedIPs) > 0:
		w.add("allowed")
		w.addPrefixes("+", c.AddAllowedIPs)
	}
	return w.String()
}

// String says which peer of which link goes.
func (c DeletePeer) String() string { return "delete peer " + shortKey(c.Key) + " on " + c.Link }

// String prints the route.
func (c SetRoute) String() string { return "set " + c.Route.String() }

// String prints the route.
func (c DeleteRoute) String() string { return "delete " + c.Route.String() }

// String prints the rule.
func (c AddRule) String() string { return "add " + c.Rule.String() }

// String prints the rule.
func (c DeleteRule) String() string { return "delete " + c.Rule.String() }

// String says how large the table is; its text is long.
func (c SetFilter) String() string {
	if c.Filter.IsEmpty() {
		return "delete table inet " + FilterTable
	}
	var elements, rules int
	for i := range c.Filter.Sets {
		elements += len(c.Filter.Sets[i].Elements)
	}
	for i := range c.Filter.Chains {
		rules += len(c.Filter.Chains[i].Rules)
	}
	return fmt.Sprintf("set table inet %s: %d sets of %d elements, %d chains of %d rules",
		FilterTable, len(c.Filter.Sets), elements, len(c.Filter.Chains), rules)
}

// words are put together with blanks.
type words []string

func (w *words) add(more ...string) { *w = append(*w, more...) }

// addValid adds a name and a value, unless the value is none.
func (w *words) addValid(name string, value interface {
	fmt.Stringer
	IsValid() bool
}) {
	if value.IsValid() {
		w.add(name, value.String())
	}
}

func (w *words) addPrefixes(sign string, prefixes []netip.Prefix) {
	for _, p := range prefixes {
		w.add(sign + p.String())
	}
}

func (w words) String() string { return strings.Join(w, " ") }

// shortKey is enough of a public key to recognise it, with both its ends, as
// WireGuard's own logs have it.
func shortKey(k model.Key) string {
	s := k.String()
	return s[:4] + "…" + s[len(s)-4:]
}

func tableName(table int) string {
	if table == TableMain {
		return "main"
	}
	return strconv.Itoa(table)
}

func hex(mark uint32) string { return "0x" + strconv.FormatUint(uint64(mark), 16) }
