package render

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
)

// Interface is the [Interface] section that wg-quick and the WireGuard apps want
// beside what "wg setconf" reads.
type Interface struct {
	Addresses  []netip.Prefix
	DNS        []netip.Addr // empty: names are resolved as before
	Search     []string     // domains to go with DNS
	MTU        int          // bytes; 0: wg-quick finds one
	ListenPort uint16       // 0: any
}

// QuickText returns the configuration in wg-quick's form. private is the
// interface's private key in base64; without one a comment says where it belongs,
// and wg-quick brings up an interface that nobody answers.
func (c Config) QuickText(i Interface, private string) string {
	var b strings.Builder
	for _, note := range c.Notes {
		comment(&b, note)
	}
	b.WriteString("[Interface]\n")
	if private == "" {
		b.WriteString("# PrivateKey = the private key of this interface\n")
	} else {
		fmt.Fprintf(&b, "PrivateKey = %s\n", private)
	}
	if len(i.Addresses) > 0 {
		fmt.Fprintf(&b, "Address = %s\n", join(i.Addresses, ", "))
	}
	if i.ListenPort != 0 {
		fmt.Fprintf(&b, "ListenPort = %d\n", i.ListenPort)
	}
	if i.MTU != 0 {
		fmt.Fprintf(&b, "MTU = %d\n", i.MTU)
	}
	if len(i.DNS) > 0 {
		fmt.Fprintf(&b, "DNS = %s\n", strings.Join(append(texts(i.DNS), i.Search...), ", "))
	}
	for n := range c.Peers {
		b.WriteByte('\n')
		c.Peers[n].write(&b)
	}
	return b.String()
}

// OutsideInterface is what the party behind a Peer calls its own: the single
// addresses among the Peer's prefixes. A Peer that has none speaks for networks
// behind it, from an address that it has already. The MTU is the smallest that a
// tunnel of the mesh has.
func OutsideInterface(s model.Snapshot, peer string) Interface {
	var i Interface
	if at := peerIndex(s, peer); at >= 0 {
		for _, p := range s.Peers[at].AllowedIPs {
			if p.IsSingleIP() {
				i.Addresses = append(i.Addresses, p)
			}
		}
		i.ListenPort = s.Peers[at].Endpoint.Port
	}
	for _, r := range reachable(s) {
		if g := r.Gateway; g != nil && g.TunnelMTU > 0 && (i.MTU == 0 || g.TunnelMTU < i.MTU) {
			i.MTU = g.TunnelMTU
		}
	}
	return i
}

// NodeInterface is the WireGuard link of a node.
func NodeInterface(s model.Snapshot, node string, port uint16) Interface {
	i := Interface{ListenPort: port}
	if n := s.Node(node); n != nil {
		i.MTU = n.TunnelMTU
		for _, a := range n.WireGuardIPs {
			i.Addresses = append(i.Addresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return i
}
