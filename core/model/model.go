package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Granularity says between whom tunnels are made.
type Granularity string

const (
	// PerLocation meshes one gateway of every location with one of every other.
	PerLocation Granularity = "location"
	// Full meshes every node with every node.
	Full Granularity = "full"
	// Cross meshes every node with the nodes of other locations.
	Cross Granularity = "cross"
)

// Endpoint is where a WireGuard party can be reached. Host is a DNS name and
// empty when the endpoint was given as an address; Addr is the address, given
// or resolved, and invalid while a name has not been resolved. The zero
// Endpoint means "not known": the other side has to speak first.
type Endpoint struct {
	Host string     `json:"host,omitempty"`
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port,omitempty"`
}

// IsZero tells whether no endpoint is known.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// AddrPort returns the address to send to; it is invalid where none is known yet.
func (e Endpoint) AddrPort() netip.AddrPort {
	if !e.Addr.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(e.Addr.Unmap(), e.Port)
}

// String returns host:port as people type it, or "" for none.
func (e Endpoint) String() string {
	switch {
	case e.Host != "":
		return e.Host + ":" + strconv.Itoa(int(e.Port))
	case e.Addr.IsValid():
		return e.AddrPort().String()
	}
	return ""
}

// MaxEpoch is the highest number that is taken for an Epoch. Who serves next takes
// one more, and after the largest of 64 bits there would be none: whoever writes it
// on a Node would keep a location's gateway from ever being replaced.
const MaxEpoch = 1 << 53

// Node is one Kubernetes Node as the mesh sees it: what its agent published,
// and before an agent spoke, what the Node object itself says.
type Node struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
	// Ready is false when the cluster says that the node is not: the only
	// sign of a failed gateway there is without probes.
	Ready bool `json:"ready"`
	// Spoken tells that an agent published the node's facts. While it is
	// false, Location, InternalIPs and PodPrefixes are read from the Node
	// object and serve only to keep traffic for it from leaving in clear.
	Spoken   bool     `json:"spoken"`
	Location string   `json:"location"`
	Key      Key      `json:"key,omitzero"`
	Endpoint Endpoint `json:"endpoint,omitzero"`
	// InternalIPs has at most one address per family, IPv4 first, each with the
	// length of its subnet; a length of 32 or 128 means that it is not known.
	InternalIPs []netip.Prefix `json:"internalIPs,omitempty"`
	// WireGuardIPs has at most one address per family, IPv4 first; empty for
	// a node that claimed none.
	WireGuardIPs []netip.Addr   `json:"wireGuardIPs,omitempty"`
	PodPrefixes  []netip.Prefix `json:"podPrefixes,omitempty"`
	Granularity  Granularity    `json:"granularity,omitempty"`
	// Epoch is the number under which the node claimed to serve as gateway of
	// its location; 0: it never did. The highest of a location serves. At most
	// MaxEpoch.
	Epoch uint64 `json:"epoch,omitempty"`
	// Slot is the node's place, from 1, among the nodes of its location that are
	// prepared to be its gateway; 0: it has none.
	Slot int `json:"slot,omitempty"`
	// Next tells that the node is about to serve in the place of a gateway that
	// works. Agents tell each other; it is published and kept nowhere.
	Next bool `json:"-"`
	// Asked records the gateway wishes (see Inputs) already acted upon.
	Asked string `json:"asked,omitempty"`
	// Leader and ForcedEndpoint are inputs that rank candidates for gateway.
	Leader         bool `json:"leader,omitempty"`
	ForcedEndpoint bool `json:"forcedEndpoint,omitempty"`
	// Keepalive is the persistent keepalive that the node asks for; 0: none asked.
	Keepalive time.Duration `json:"keepalive,omitempty"`
	// AllowedLocationIPs are further prefixes reachable through the node's location.
	AllowedLocationIPs []netip.Prefix `json:"allowedLocationIPs,omitempty"`
	// Discovered are the endpoints that the node's device learned of parties
	// that publish none.
	Discovered map[Key]netip.AddrPort `json:"discovered,omitempty"`
	// Silent names, sorted, the nodes whose link of their own with this one does
	// not answer though it should: the others need to know which way to take.
	Silent []string `json:"silent,omitempty"`
	// TunnelMTU is the MTU in bytes of the node's WireGuard link; 0: not known.
	TunnelMTU int `json:"tunnelMTU,omitempty"`
	// Tunnel is the kind of device: "kernel" or "userspace".
	Tunnel string `json:"tunnel,omitempty"`
	// NodesOnly tells that the node's host CNI tunnels pods from node to node
	// by itself, so that only node addresses cross between locations.
	NodesOnly bool `json:"nodesOnly,omitempty"`
}

// InternalIP returns the node's internal address of the family that like has;
// it is invalid where the node has none.
func (n *Node) InternalIP(v4 bool) netip.Addr {
	for _, p := range n.InternalIPs {
		if p.Addr().Is4() == v4 {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// WireGuardIP returns the node's WireGuard address of a family, or an invalid one.
func (n *Node) WireGuardIP(v4 bool) netip.Addr {
	for _, a := range n.WireGuardIPs {
		if a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}

// Peer is a WireGuard party outside the cluster, already validated.
type Peer struct {
	Name         string         `json:"name"`
	UID          string         `json:"uid,omitempty"`
	Key          Key            `json:"key"`
	PresharedKey PresharedKey   `json:"presharedKey,omitzero"`
	AllowedIPs   []netip.Prefix `json:"allowedIPs"`
	Endpoint     Endpoint       `json:"endpoint,omitzero"`
	Keepalive    time.Duration  `json:"keepalive,omitempty"`
	// PresharedKeyFrom names where the preshared key is kept; zero: nowhere else.
	PresharedKeyFrom SecretEntry `json:"presharedKeyFrom,omitzero"`
	// DefaultRoute allows 0.0.0.0/0 and ::/0 among AllowedIPs.
	DefaultRoute bool `json:"defaultRoute,omitempty"`
	// ExpiresAt is when the Peer's access ends; zero: never.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// Destinations and Named limit what the Peer may begin to speak to, as it
	// addresses it; both empty: nothing does. Sorted.
	Destinations []netip.Prefix     `json:"destinations,omitempty"`
	Named        []NamedDestination `json:"named,omitempty"`
	// Seq orders Peers by age: creation time as the API server's one clock
	// gave it, in nanoseconds since 1970. Ties go by UID.
	Seq int64 `json:"seq,omitempty"`
}

// Limited tells whether the Peer may begin to speak to its destinations alone.
func (p *Peer) Limited() bool { return len(p.Destinations)+len(p.Named) > 0 }

// NamedDestination is a Service, or all that is in a namespace, which a Peer may
// speak to.
type NamedDestination struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service,omitempty"` // "": the whole namespace
	// Addresses are what is known of it, sorted; none: nobody may be spoken to.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Same tells whether both name the same.
func (d NamedDestination) Same(o NamedDestination) bool {
	return d.Namespace == o.Namespace && d.Service == o.Service
}

// String returns "namespace shop" or "Service shop/api".
func (d NamedDestination) String() string {
	if d.Service == "" {
		return "namespace " + d.Namespace
	}
	return "Service " + d.Namespace + "/" + d.Service
}

// SecretEntry names one entry of a Kubernetes Secret in the agents' namespace.
type SecretEntry struct {
	Secret string `json:"secret"`
	Entry  string `json:"entry"`
}

// Snapshot is everything known about the cluster at one moment. Nodes and
// Peers are sorted by name. Nobody changes a Snapshot after it was made.
type Snapshot struct {
	Nodes []Node `json:"nodes"`
	Peers []Peer `json:"peers,omitempty"`
	// ServicePrefixes are the cluster's Service address ranges.
	ServicePrefixes []netip.Prefix `json:"servicePrefixes,omitempty"`
	// WireGuardSubnets are what WireGuard addresses are taken from, at most
	// one per family (--subnet).
	WireGuardSubnets []netip.Prefix `json:"wireGuardSubnets,omitempty"`
	// APIServers are the addresses at which API servers are reached: the
	// agent's own configuration and the endpoints of the kubernetes Service.
	APIServers []netip.AddrPort `json:"apiServers,omitempty"`
}

// Sort brings Nodes and Peers into the order that Snapshot promises.
func (s *Snapshot) Sort() {
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
}

// Node returns the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node {
	i, ok := slices.BinarySearchFunc(s.Nodes, name, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	return &s.Nodes[i]
}

// Interface is a network interface of this node as far as decisions need it.
type Interface struct {
	Index     int            `json:"index"`
	Name      string         `json:"name"`
	Kind      string         `json:"kind"` // rtnl link kind: "veth", "vxlan", "wireguard", "" for hardware
	MTU       int            `json:"mtu"`
	Up        bool           `json:"up"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// RPFilter is the reverse path filter that holds for an interface with an
	// address: 0 off, 1 strict, 2 loose (kernel's ip-sysctl, rp_filter).
	RPFilter int `json:"rpFilter,omitempty"`
}

// Host is what this node's kernel says about the node itself.
type Host struct {
	Interfaces []Interface `json:"interfaces"`
	// DefaultDevices are the interfaces of main's default routes, best metric
	// first.
	DefaultDevices []string `json:"defaultDevices,omitempty"`
}

// Warning is something that a person should know and can act on. It never
// stops the rest.
type Warning struct {
	// Kind is a stable CamelCase word that metrics count by, such as "BadAnnotation".
	Kind string `json:"kind"`
	// Object is what the warning is about: "node/e1", "peer/laptop".
	Object string `json:"object"`
	// Message says what is wrong, which value, and what to do.
	Message string `json:"message"`
	// Note tells that nothing is broken: what is to be known is better than it
	// could be, or mends itself.
	Note bool `json:"note,omitempty"`
}

// String returns the warning in one line.
func (w Warning) String() string { return w.Kind + " " + w.Object + ": " + w.Message }
