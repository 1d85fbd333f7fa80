package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Spec is a lab as a value: copy it, change it, bring it up. Zero fields take
// the defaults that Complete documents.
type Spec struct {
	Locations []Location `json:"locations"`

	// PodNetwork is split into one /24 a node by the node-ipam controller.
	PodNetwork netip.Prefix `json:"podNetwork"` // zero: 10.244.0.0/16
	// ServiceNetwork holds the ClusterIPs.
	ServiceNetwork netip.Prefix `json:"serviceNetwork"` // zero: 10.96.0.0/12
	// Internet is where public legs and routers have their addresses. Its
	// last usable address is the internet's own.
	Internet netip.Prefix `json:"internet"` // zero: 198.51.100.0/24
	// RoutedInternet gives every public leg a link of its own and a /32, as
	// most providers do, instead of a place on one shared segment.
	RoutedInternet bool `json:"routedInternet,omitempty"`

	// MTU of every LAN and public leg, in bytes.
	MTU int `json:"mtu"` // zero: 1500
	// RPFilter is written to net.ipv4.conf.{all,default}.rp_filter of every
	// node before its interfaces exist, so that it holds on all of them.
	RPFilter RPFilter `json:"rpFilter"` // "": strict

	CNI       CNI       `json:"cni"`       // "": flannel
	Flannel   Flannel   `json:"flannel"`   // how, where the CNI has it
	Cilium    Cilium    `json:"cilium"`    // how, where the CNI has it
	ProxyMode ProxyMode `json:"proxyMode"` // "": iptables, or off where Cilium replaces it

	// NoAgent leaves the agent out everywhere: the cluster as its CNI made it.
	NoAgent bool `json:"noAgent,omitempty"`
	// Sidecar has packets carried by a process beside the agent (kg wireguard),
	// which the agent waits for and which outlives it.
	Sidecar bool `json:"sidecar,omitempty"`
	// Manifest is a file of the product's manifests (kilo-flannel.yaml). Agents,
	// sidecars included, are then what its DaemonSets say and nothing else, each with
	// a token of its own. "": the lab's own command line, for all with one token.
	Manifest string `json:"manifest,omitempty"`
	// AgentFlags are added to the command line of every agent.
	AgentFlags []string `json:"agentFlags,omitempty"`
}

// CNI is the host CNI.
type CNI string

const (
	CNIFlannel CNI = "flannel"
	CNICilium  CNI = "cilium"
	// CNIChained is Flannel, which routes, and Cilium chained behind it, which
	// enforces policies.
	CNIChained CNI = "flannel+cilium"
	CNINone    CNI = "none" // and no pods
)

func (c CNI) hasFlannel() bool { return c == CNIFlannel || c == CNIChained }
func (c CNI) hasCilium() bool  { return c == CNICilium || c == CNIChained }

// Flannel is how it is set up.
type Flannel struct {
	Backend string `json:"backend,omitempty"` // "": vxlan; or host-gw
	VNI     int    `json:"vni,omitempty"`     // 0: Flannel's own default, 1
	Port    int    `json:"port,omitempty"`    // 0: the kernel's default, 8472
	// DirectRouting routes plainly to nodes on the same segment (vxlan only).
	DirectRouting bool `json:"directRouting,omitempty"`
	// NFTables makes Flannel masquerade by nftables instead of iptables.
	NFTables bool `json:"nftables,omitempty"`
}

// RPFilter names the reverse path filter by what it does.
type RPFilter string

const (
	RPFilterOff    RPFilter = "off"
	RPFilterStrict RPFilter = "strict"
	RPFilterLoose  RPFilter = "loose"
)

// ParseRPFilter accepts the names and the kernel's numbers 0, 1, 2.
func ParseRPFilter(s string) (RPFilter, error) {
	switch s {
	case "0", "off":
		return RPFilterOff, nil
	case "1", "strict":
		return RPFilterStrict, nil
	case "2", "loose":
		return RPFilterLoose, nil
	}
	return "", fmt.Errorf("rp_filter %q: want 0, 1, 2 or off, strict, loose", s)
}

func (f RPFilter) sysctl() string {
	switch f {
	case RPFilterOff:
		return "0"
	case RPFilterLoose:
		return "2"
	}
	return "1"
}

// ProxyMode is kube-proxy's.
type ProxyMode string

const (
	ProxyIPTables ProxyMode = "iptables"
	ProxyNFTables ProxyMode = "nftables"
	ProxyOff      ProxyMode = "off" // no kube-proxy
)

// Location is a LAN with machines and, towards the internet, a NAT router. A
// location none of whose nodes has a public leg is behind NAT.
type Location struct {
	Name string `json:"name"`
	// Subnets hang off the one router, which forwards between them. No
	// subnet: the machines have a public leg only and there is no router.
	Subnets []netip.Prefix `json:"subnets,omitempty"`
	Router  netip.Addr     `json:"router"` // on the internet; zero: chosen
	// Cloud makes the network carry only packets from and to addresses of its
	// own subnets, between them and inside them, as clouds do: pods' packets
	// need an encapsulation.
	Cloud bool   `json:"cloud,omitempty"`
	Nodes []Node `json:"nodes"`
}

// Node is a machine.
type Node struct {
	Name   string     `json:"name"`
	Subnet int        `json:"subnet,omitempty"` // index into the location's Subnets
	LAN    netip.Addr `json:"lan"`              // zero: chosen; stays zero without subnets
	// Public asks for a public leg; PublicIP is its address.
	Public   bool       `json:"public,omitempty"`
	PublicIP netip.Addr `json:"publicIP"` // zero: chosen
	MTU      int        `json:"mtu,omitempty"`
	Pods     int        `json:"pods,omitempty"`
	// PodNamespace is that of its pods, made with them.
	PodNamespace string `json:"podNamespace,omitempty"` // "": default

	// ControlPlane makes this machine run etcd, the API server and the
	// controller manager. Exactly one node has it, and a public leg.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// Outsider is a machine that is no node of the cluster: a laptop, a
	// server, another cluster's gateway.
	Outsider bool `json:"outsider,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	NoAgent     bool              `json:"noAgent,omitempty"`
	AgentFlags  []string          `json:"agentFlags,omitempty"`
	AgentEnv    map[string]string `json:"agentEnv,omitempty"`
}

// Default is the lab of the demo and of most scenarios: location a with three
// nodes, two of them public; b with two, one public; c with two behind NAT; and
// the control plane's host in a location of its own. One pod on each of the
// seven, so 42 ordered pairs.
func Default() Spec {
	return Spec{
		Locations: []Location{
			{Name: "a", Subnets: subnets("10.1.0.0/24"), Nodes: []Node{
				{Name: "a1", Public: true, Pods: 1},
				{Name: "a2", Public: true, Pods: 1},
				{Name: "a3", Pods: 1},
			}},
			{Name: "b", Subnets: subnets("10.2.0.0/24"), Nodes: []Node{
				{Name: "b1", Public: true, Pods: 1},
				{Name: "b2", Pods: 1},
			}},
			{Name: "c", Subnets: subnets("10.3.0.0/24"), Nodes: []Node{
				{Name: "c1", Pods: 1},
				{Name: "c2", Pods: 1},
			}},
			{Name: "cp", Subnets: subnets("10.9.0.0/24"), Nodes: []Node{
				{Name: "cp", Public: true, PublicIP: netip.MustParseAddr("198.51.100.10"), ControlPlane: true},
			}},
		},
	}
}

func subnets(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// Complete returns the spec with every zero field filled in, or says what is
// wrong with it. Addresses that are not given are chosen by position: the j-th
// node of a location (from 1) is .j on its subnet and 198.51.100.(10·i+j) on
// the internet, where i is the location's number from 1.
func (s Spec) Complete() (Spec, error) {
	s = s.clone()
	setDefault(&s.PodNetwork, netip.MustParsePrefix("10.244.0.0/16"))
	setDefault(&s.ServiceNetwork, netip.MustParsePrefix("10.96.0.0/12"))
	setDefault(&s.Internet, netip.MustParsePrefix("198.51.100.0/24"))
	setDefault(&s.MTU, 1500)
	setDefault(&s.RPFilter, RPFilterStrict)
	setDefault(&s.CNI, CNIFlannel)
	setDefault(&s.Flannel.Backend, "vxlan")
	s.completeCilium()
	setDefault(&s.ProxyMode, ProxyIPTables)

	for i := range s.Locations {
		loc := &s.Locations[i]
		if len(loc.Subnets) > 0 {
			setDefault(&loc.Router, hostOf(s.Internet, 200+i+1))
		}
		for j := range loc.Nodes {
			n := &loc.Nodes[j]
			setDefault(&n.MTU, s.MTU)
			if len(loc.Subnets) > 0 {
				if n.Subnet < 0 || n.Subnet >= len(loc.Subnets) {
					return Spec{}, fmt.Errorf("node %s: subnet %d of location %s does not exist: it has %d", n.Name, n.Subnet, loc.Name, len(loc.Subnets))
				}
				setDefault(&n.LAN, hostOf(loc.Subnets[n.Subnet], j+1))
			} else {
				n.Public = true
			}
			if n.Public {
				setDefault(&n.PublicIP, hostOf(s.Internet, 10*(i+1)+j+1))
			}
		}
	}
	return s, s.check()
}

func (s Spec) check() error {
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	planes := 0
	names := map[string]bool{"internet": true}
	addrs := map[netip.Addr]string{s.internetAddr(): "the internet"}
	claim := func(a netip.Addr, inside netip.Prefix, who string) {
		if !a.IsValid() {
			return
		}
		if !inside.Contains(a) {
			complain("%s: address %s is outside %s", who, a, inside)
		}
		if other, taken := addrs[a]; taken {
			complain("%s: address %s belongs to %s already: give one of them explicitly", who, a, other)
		}
		addrs[a] = who
	}
	for _, loc := range s.Locations {
		claim(loc.Router, s.Internet, "router of "+loc.Name)
		for _, n := range loc.Nodes {
			switch {
			case n.Name == "" || len(n.Name) > 12 || strings.ContainsAny(n.Name, "/ _."):
				complain("node name %q: want 1 to 12 letters, digits and dashes (it names interfaces)", n.Name)
			case names[n.Name]:
				complain("node name %q is used twice", n.Name)
			}
			names[n.Name] = true
			if n.LAN.IsValid() {
				claim(n.LAN, loc.Subnets[n.Subnet], "node "+n.Name)
			}
			claim(n.PublicIP, s.Internet, "node "+n.Name)
			if n.ControlPlane {
				planes++
				if !n.Public || n.Outsider {
					complain("node %s: the control plane's host needs a public leg and must be a node", n.Name)
				}
			}
		}
	}
	if planes != 1 {
		complain("%d nodes have the control plane: want exactly one", planes)
	}
	if !s.CNI.hasFlannel() && !s.CNI.hasCilium() && s.CNI != CNINone {
		complain("CNI %q: want flannel, cilium, flannel+cilium or none", s.CNI)
	}
	s.checkCilium(complain)
	if s.Flannel.Backend != "vxlan" && s.Flannel.Backend != "host-gw" {
		complain("flannel backend %q: want vxlan or host-gw", s.Flannel.Backend)
	}
	switch s.ProxyMode {
	case ProxyIPTables, ProxyNFTables, ProxyOff:
	default:
		complain("kube-proxy mode %q: want iptables, nftables or off", s.ProxyMode)
	}
	return errors.Join(problems...)
}

// clone copies the slices that Complete writes to.
func (s Spec) clone() Spec {
	s.Locations = slices.Clone(s.Locations)
	for i := range s.Locations {
		s.Locations[i].Nodes = slices.Clone(s.Locations[i].Nodes)
	}
	return s
}

// nodes calls f for every machine, in the order of the spec.
func (s *Spec) nodes(f func(loc *Location, n *Node)) {
	for i := range s.Locations {
		for j := range s.Locations[i].Nodes {
			f(&s.Locations[i], &s.Locations[i].Nodes[j])
		}
	}
}

func (s *Spec) node(name string) (*Location, *Node, bool) {
	for i := range s.Locations {
		for j := range s.Locations[i].Nodes {
			if s.Locations[i].Nodes[j].Name == name {
				return &s.Locations[i], &s.Locations[i].Nodes[j], true
			}
		}
	}
	return nil, nil, false
}

func (s *Spec) controlPlane() *Node {
	var cp *Node
	s.nodes(func(_ *Location, n *Node) {
		if n.ControlPlane {
			cp = n
		}
	})
	return cp
}

// internetAddr is the internet's own address, every public leg's gateway.
func (s *Spec) internetAddr() netip.Addr { return lastHost(s.Internet) }

// InternalIP is the address that the Node object shows as InternalIP.
func (n *Node) InternalIP() netip.Addr {
	if n.LAN.IsValid() {
		return n.LAN
	}
	return n.PublicIP
}

// lanInterface and publicInterface are the names inside the machine. The LAN
// comes first; a machine without one has its public leg as eth0.
func (n *Node) lanInterface() string { return "eth0" }

func (n *Node) publicInterface() string {
	if n.LAN.IsValid() {
		return "eth1"
	}
	return "eth0"
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// hostOf is the i-th address of an IPv4 prefix.
func hostOf(p netip.Prefix, i int) netip.Addr {
	b := p.Masked().Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(i)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// lastHost is the last address before the broadcast address.
func lastHost(p netip.Prefix) netip.Addr { return hostOf(p, 1<<(32-p.Bits())-2) }
