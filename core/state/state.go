package state

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// Where our things are in the kernel. We recognise what is ours by these
// numbers and names, so that what an earlier process left is adopted or
// removed like anything else. docs/architecture.md says why these values.
const (
	// TableOverlay leads to other locations. Consulted before main.
	TableOverlay = 1107
	// TableReturn leads a gateway's traffic from the overlay back to members
	// of its own location, the way their traffic comes.
	TableReturn = 1108
	// PriorityTunnel is the priority of the rules that send WireGuard's own
	// packets to main.
	PriorityTunnel = 105
	// PriorityReturn is the priority of the rule for TableReturn.
	PriorityReturn = 106
	// PriorityOverlay is the priority of the rule for TableOverlay.
	PriorityOverlay = 107
	// TableMain is the kernel's main table (RT_TABLE_MAIN). We never write to it.
	TableMain = 254
	// Protocol marks our routes and rules (rtm_protocol).
	Protocol = 107
	// Mark is carried by WireGuard's own packets and compared in full.
	Mark = 0x1000
	// MarkForwarded is a bit of the packet mark that the mesh's traffic carries
	// from the beginning to the end of the forward hook, for an accept in a chain
	// of somebody else's to see. It is the one bit that no host CNI has a use for
	// there: Cilium keeps identities in bits 0 to 7 and 16 to 31 and magic values
	// in 8 to 11, portmap and kube-proxy have 13 to 15.
	MarkForwarded = 0x1000
	// MarkForwardedPlain goes with MarkForwarded where a packet had no other mark:
	// a mark that somebody saves and restores must not be Mark, which lets packets
	// skip TableOverlay.
	MarkForwardedPlain = 0x10
	// MetricLast is the metric of the unreachable that stands under every
	// route of ours: the highest there is.
	MetricLast = 1<<32 - 1
	// FilterTable is the name of our nftables table, family inet.
	FilterTable = "kilo"
	// VXLANLink is the name of the encapsulation link that some adapters need.
	VXLANLink = "kilo-vxlan"
	// TunnelSlots is how many WireGuard links a node may have: one for each rank
	// of gateways that other locations keep ready.
	TunnelSlots = 4
	// LinkAlias is the ifalias of links of ours: a name alone proves nothing.
	LinkAlias = "kilo"
	// LoopbackLink is where the WireGuard address stands while the WireGuard link
	// is to have none; LoopbackLabel marks it there as ours (IFA_LABEL).
	LoopbackLink  = "lo"
	LoopbackLabel = "lo:kilo"
)

// State is what is wanted or was found. Slices are in no particular order
// until Normalize; nobody changes one after it was handed on.
type State struct {
	Links  []Link
	Routes []Route
	Rules  []Rule
	// Filter is the table inet kilo; an empty Filter means no table.
	Filter Filter
}

// TunnelLink is the name of the WireGuard link for a slot, counted from 0, where
// the first one's name is first: kilo0, kilo1, … A name that does not end in a
// number gets one behind a hyphen.
func TunnelLink(first string, slot int) string {
	if slot == 0 {
		return first
	}
	stem := strings.TrimRight(first, "0123456789")
	n, err := strconv.Atoi(first[len(stem):])
	if err != nil {
		return first + "-" + strconv.Itoa(slot)
	}
	return stem + strconv.Itoa(n+slot)
}

// TunnelLinks are the names of all WireGuard links that may be ours.
func TunnelLinks(first string) []string {
	names := make([]string, TunnelSlots)
	for i := range names {
		names[i] = TunnelLink(first, i)
	}
	return names
}

// Peers are the WireGuard peers of all links, to look at or to change in place.
func (s State) Peers() []*Peer {
	var out []*Peer
	for i := range s.Links {
		if t := s.Links[i].Tunnel; t != nil {
			for j := range t.Peers {
				out = append(out, &t.Peers[j])
			}
		}
	}
	return out
}

// LinkKind is the kind of a link of ours.
type LinkKind string

const (
	// WireGuard is a kernel WireGuard link or the TUN of the userspace device:
	// which of the two is no part of the wanted state.
	WireGuard LinkKind = "wireguard"
	// VXLAN is an encapsulation link inside a location.
	VXLAN LinkKind = "vxlan"
	// Loopback is the loopback link, of which nothing is ours but the addresses
	// with our label. IPv4 only: an IPv6 address has no label. Without such an
	// address it is not in a State.
	Loopback LinkKind = "loopback"
)

// Link is a network interface of ours. Every link is up; none has an IPv6
// link-local address unless Addresses names it.
type Link struct {
	Name      string
	Kind      LinkKind
	MTU       int // bytes; 0 for Loopback, whose MTU is not ours
	Addresses []netip.Prefix
	// Loose asks for a reverse path filter that lets in what would be answered by
	// another interface (rp_filter 2, RFC 3704 section 2.4). Otherwise the setting
	// for all interfaces decides.
	Loose bool
	// Tunnel is for WireGuard. Nil in an observed WireGuard link, it means
	// that the device's configuration could not be read.
	Tunnel *Tunnel
	VXLAN  *VXLANConfig // for VXLAN
	// Down is set by Observe only: somebody took the link down. Wanted links
	// are up.
	Down bool
}

// Tunnel configures a WireGuard link.
type Tunnel struct {
	// Key is the public key of the private key that the device holds.
	Key   model.Key
	Port  uint16
	Mark  uint32
	Peers []Peer
}

// Peer is one WireGuard peer. An invalid Endpoint in a wanted Peer equals any
// observed one: a peer that has roamed is not a peer that is wrong.
type Peer struct {
	// Name is for people ("node/w1", "peer/laptop"). It is never compared and
	// empty in observed states.
	Name         string
	Key          model.Key
	PresharedKey model.PresharedKey
	Endpoint     netip.AddrPort
	AllowedIPs   []netip.Prefix
	Keepalive    time.Duration // 0: off; WireGuard counts whole seconds
	// Alive is set by Observe only: the last handshake is younger than 180
	// seconds (WireGuard's REJECT_AFTER_TIME). A live peer's endpoint is left
	// as it is; a wanted endpoint is where to knock when nobody answers.
	Alive bool
	// Moved is for wanted Peers only: Endpoint is news, and written to a live
	// one too.
	Moved bool
}

// VXLANConfig configures a VXLAN link without learning.
type VXLANConfig struct {
	ID     uint32 // VNI
	Port   uint16
	Device string     // underlying device, which all frames leave by
	Local  netip.Addr // outer source
	MAC    string     // the link's own; "" leaves it to the kernel
	// Remotes are the other ends: where the frames for an inner next hop go.
	Remotes []VXLANRemote
}

// VXLANRemote is a static neighbour and forwarding entry. The latter names
// VXLANConfig.Device, so that a frame never finds its way by our own tables.
type VXLANRemote struct {
	Inner netip.Addr // next hop in routes
	MAC   string
	Outer netip.Addr // VXLAN destination
}

// RouteType says what a route does, by the kernel's number (rtm_type). Others than
// these are observed only.
type RouteType uint8

const (
	// Unicast sends to Via or, without one, straight out of Device.
	Unicast RouteType = 1
	// Local delivers to this node, whether or not a link has the address. Of IPv6
	// only: an IPv4 address of ours can stand on LoopbackLink.
	Local RouteType = 2
	// Unreachable refuses with an ICMP error.
	Unreachable RouteType = 7
	// Throw leaves our table as though nothing had matched.
	Throw RouteType = 9
)

func (t RouteType) String() string {
	switch t {
	case Unicast:
		return "unicast"
	case Local:
		return "local"
	case Unreachable:
		return "unreachable"
	case Throw:
		return "throw"
	}
	return "type " + strconv.Itoa(int(t))
}

// Route is a route in one of our tables, of protocol Protocol. Table, Dst and
// Metric identify it.
type Route struct {
	Table  int
	Dst    netip.Prefix
	Via    netip.Addr // invalid: none
	Device string     // for Unicast
	Source netip.Addr // preferred source; invalid: the kernel's choice
	MTU    int        // bytes; 0: the device's
	Metric uint32     // 0 is 1024 for IPv6, as the kernel has it
	Type   RouteType
	OnLink bool // Via is reachable on Device whatever the addresses say
}

// Rule is a policy routing rule of protocol Protocol. All its fields identify it.
type Rule struct {
	Priority int
	V6       bool
	// Invert, Mark: with Mark != 0, matches packets whose mark, compared in
	// full, is Mark; with Invert, those whose mark is not.
	Invert  bool
	Mark    uint32
	From    netip.Addr // source; invalid: any
	IIF     string     // incoming interface; "": any
	Proto   string     // "udp", "tcp" or "": any
	SrcPort uint16     // 0: any
	DstPort uint16
	Table   int
}
