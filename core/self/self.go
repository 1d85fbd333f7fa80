package self

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
)

// Settings are the agent's flags that concern its own node. Those with an
// annotation of the same name stand in for it on nodes that nobody annotates
// in time; the annotation wins.
type Settings struct {
	Location           string
	ForceEndpoint      model.Endpoint
	ForceInternalIPs   []netip.Prefix
	NoInternalIP       bool
	Leader             bool
	Keepalive          time.Duration
	AllowedLocationIPs []netip.Prefix

	Port        uint16 // UDP port of the WireGuard device
	Granularity model.Granularity
	// InternalCIDRs limit internal addresses to those inside (--internal-cidr).
	InternalCIDRs []netip.Prefix
	// PublicCIDRs count as public although the registries of special addresses
	// say otherwise (--public-cidrs).
	PublicCIDRs []netip.Prefix
	// ExcludeInterfaces (names, or beginnings that end in '*') and ExcludeCIDRs
	// are never candidates, in addition to what is left out anyway.
	ExcludeInterfaces []string
	ExcludeCIDRs      []netip.Prefix
	// PreferPrivate takes a private address of the node's interfaces for its
	// endpoint, and for its internal address where its InternalIP is a public
	// one: locations reach each other by private addresses
	// (--prioritise-private-addresses).
	PreferPrivate bool
}

// Input is everything that Decide looks at.
type Input struct {
	Node     string
	Inputs   model.Inputs
	Settings Settings
	Host     model.Host
	Adapter  adapter.Facts
	// Interface is the WireGuard link's name.
	Interface string
	// Overlay are prefixes that never hold a node's own address: pods,
	// Services, WireGuard subnets.
	Overlay   []netip.Prefix
	Key       model.Key
	Tunnel    string // "kernel" or "userspace"
	TunnelMTU int
}

// Result is Decide's answer. WireGuardIPs, Epoch, Asked and Discovered of
// Published are left empty: they depend on other nodes and are filled in from
// core/plan.
type Result struct {
	Published model.Published
	// Keepalive, Leader, ForcedEndpoint and AllowedLocationIPs are the node's
	// inputs with the flags behind them. Other nodes read them from annotations
	// only, so the agent publishes what comes from flags.
	Keepalive          time.Duration
	Leader             bool
	ForcedEndpoint     bool
	AllowedLocationIPs []netip.Prefix
	Warnings           []model.Warning
}

// Decide returns what the node says about itself.
func Decide(in Input) Result {
	d := decider{in: &in}
	s, a := &in.Settings, &in.Inputs
	p := model.Published{
		Key:         in.Key,
		Location:    firstOf(a.LocationAnnotation, a.LocationLabel, s.Location, a.TopologyLabel),
		Granularity: s.Granularity,
		Tunnel:      in.Tunnel,
		TunnelMTU:   in.TunnelMTU,
		NodesOnly:   in.Adapter.NodesOnly,
		PodPrefixes: d.podPrefixes(),
	}
	p.InternalIPs = d.internalIPs()
	if p.Granularity == model.Full {
		p.Granularity = d.full(p.InternalIPs)
	}
	forced := a.ForceEndpoint
	if forced.IsZero() {
		forced = s.ForceEndpoint
	}
	p.Endpoint = forced
	if forced.IsZero() {
		p.Endpoint = d.endpoint()
	}
	r := Result{
		Published:          p,
		Keepalive:          a.Keepalive,
		Leader:             a.Leader || s.Leader,
		ForcedEndpoint:     !forced.IsZero(),
		AllowedLocationIPs: a.AllowedLocationIPs,
	}
	if r.Keepalive == 0 {
		r.Keepalive = s.Keepalive
	}
	if len(r.AllowedLocationIPs) == 0 {
		r.AllowedLocationIPs = s.AllowedLocationIPs
	}
	r.Warnings = d.warnings
	return r
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

type decider struct {
	in       *Input
	warnings []model.Warning
}

func (d *decider) warn(kind, format string, args ...any) {
	d.warnings = append(d.warnings, model.Warning{Kind: kind, Object: "node/" + d.in.Node, Message: fmt.Sprintf(format, args...)})
}

// podPrefixes are the host CNI's record, which wins over the Node's spec: the
// CNI is what gives pods their addresses. A prefix of all addresses is left out: with
// it everything would be this node's own ground, and nothing guarded.
func (d *decider) podPrefixes() []netip.Prefix {
	found, spec := d.in.Adapter.PodPrefixes, d.in.Inputs.PodCIDRs
	all := func(p netip.Prefix) bool { return p.Bits() == 0 }
	if i := slices.IndexFunc(found, all); i >= 0 {
		d.warn("BadPodPrefix", "%s has pod prefix %s for this node, which is all addresses there are; it is left out. Mend what gives the CNI its network", orUnknown(d.in.Adapter.CNI), found[i])
		found = slices.DeleteFunc(slices.Clone(found), all)
	}
	switch {
	case len(found) == 0 && len(spec) == 0:
		d.warn("NoPodPrefix", "neither %s nor spec.podCIDRs names a pod prefix; only the node's own address is meshed", orUnknown(d.in.Adapter.CNI))
		return nil
	case len(found) == 0:
		return spec
	}
	for _, p := range spec {
		if !slices.Contains(found, p) {
			d.warn("PodPrefixDiffers", "spec.podCIDRs has %s, %s has %s; the latter is used", p, orUnknown(d.in.Adapter.CNI), join(found))
			break
		}
	}
	return found
}

func orUnknown(cni string) string {
	if cni == "" {
		return "the host CNI"
	}
	return cni
}

func join(ps []netip.Prefix) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}

// internalIPs returns at most one address per family, IPv4 first.
func (d *decider) internalIPs() []netip.Prefix {
	a, s := &d.in.Inputs, &d.in.Settings
	if a.NoInternalIP {
		return nil
	}
	if forced := d.forced("kilo.squat.ai/force-internal-ip", a.ForceInternalIPs); len(forced) > 0 {
		return forced
	}
	if s.NoInternalIP {
		return nil
	}
	if forced := d.forced("--force-internal-ip", s.ForceInternalIPs); len(forced) > 0 {
		return forced
	}
	var out []netip.Prefix
	for _, v4 := range []bool{true, false} {
		if p := d.internalIP(v4); p.IsValid() {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		d.warn("NoInternalIP", "this node has no address that other locations could reach it at, only its pods are meshed; set the kubelet's --node-ip, or kilo.squat.ai/force-internal-ip, to \"-\" where that is as it should be")
	}
	return out
}

// forced are those of the addresses that somebody wants for this node that a
// node can have.
func (d *decider) forced(where string, addresses []netip.Prefix) []netip.Prefix {
	return onePerFamily(slices.DeleteFunc(slices.Clone(addresses), func(p netip.Prefix) bool {
		a := p.Addr().Unmap()
		if !within(d.in.Overlay, a) {
			return false
		}
		d.warn("BadInternalIP", "%s: %s is not used: %s", where, a, d.unusable(a))
		return true
	}))
}

func onePerFamily(ps []netip.Prefix) (out []netip.Prefix) {
	for _, v4 := range []bool{true, false} {
		if i := slices.IndexFunc(ps, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 }); i >= 0 {
			out = append(out, ps[i])
		}
	}
	return out
}

// internalIP chooses: an address in --internal-cidr, else the Node's
// InternalIP, else a private address of the node's own interfaces.
func (d *decider) internalIP(v4 bool) netip.Prefix {
	s := &d.in.Settings
	own := d.candidates(v4)
	if len(s.InternalCIDRs) > 0 {
		for _, p := range own {
			if within(s.InternalCIDRs, p.Addr()) {
				return p
			}
		}
	}
	node := d.nodeInternalIP(v4)
	if node.IsValid() && !(s.PreferPrivate && d.public(node.Addr())) {
		return node
	}
	for _, p := range own {
		if private(p.Addr()) {
			return p
		}
	}
	return node
}

// nodeInternalIP is the Node's InternalIP with the length of its subnet, where
// an interface has it.
func (d *decider) nodeInternalIP(v4 bool) netip.Prefix {
	for _, a := range d.in.Inputs.NodeInternalIPs {
		a = a.Unmap()
		if a.Is4() != v4 {
			continue
		}
		if why := d.unusable(a); why != "" {
			d.warn("BadInternalIP", "the Node's InternalIP %s is not used: %s; set kilo.squat.ai/force-internal-ip or the kubelet's --node-ip", a, why)
			continue
		}
		for _, i := range d.in.Host.Interfaces {
			for _, p := range i.Addresses {
				if p.Addr().Unmap() == a {
					return netip.PrefixFrom(a, p.Bits())
				}
			}
		}
		return netip.PrefixFrom(a, a.BitLen())
	}
	return netip.Prefix{}
}

// full is the granularity that a node can have that asks for full. On a shared
// network the neighbours' addresses ride the tunnel although they are on-link,
// and with a strict reverse path filter the kernel then answers none of their
// ARP requests. Better served half by decision than by accident.
func (d *decider) full(internal []netip.Prefix) model.Granularity {
	for _, i := range d.in.Host.Interfaces {
		if i.RPFilter != 1 {
			continue
		}
		for _, a := range i.Addresses {
			if !a.IsSingleIP() && slices.ContainsFunc(internal, func(p netip.Prefix) bool { return p.Addr() == a.Addr() }) {
				d.warn("FullNeedsLooseRPFilter", "granularity full is served as cross: %s, where %s is, has a strict reverse path filter, and with that nodes of one network cannot meet through the tunnel; set net.ipv4.conf.%s.rp_filter=2 (all nodes of the network), or choose cross", i.Name, a.Addr(), i.Name)
				return model.Cross
			}
		}
	}
	return model.Full
}

// endpoint is the first public address of the node, or none: better to be
// spoken to by nobody than to send others to a wrong address. A private one it
// is only where somebody says that others reach it.
func (d *decider) endpoint() model.Endpoint {
	wanted := []func(netip.Addr) bool{d.public}
	if d.in.Settings.PreferPrivate {
		wanted = []func(netip.Addr) bool{private, d.public}
	}
	for _, good := range wanted {
		for _, v4 := range []bool{true, false} {
			for _, p := range d.candidates(v4) {
				if good(p.Addr()) {
					return model.Endpoint{Addr: p.Addr(), Port: d.in.Settings.Port}
				}
			}
		}
	}
	return model.Endpoint{}
}

// candidates are the node's own addresses that can be its internal address or
// endpoint, those of default routes' devices first.
func (d *decider) candidates(v4 bool) []netip.Prefix {
	var out []netip.Prefix
	add := func(i *model.Interface) {
		if !i.Up || d.excludedInterface(i) {
			return
		}
		for _, p := range i.Addresses {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits())
			if p.Addr().Is4() == v4 && d.unusable(p.Addr()) == "" && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	for _, name := range d.in.Host.DefaultDevices {
		for i := range d.in.Host.Interfaces {
			if d.in.Host.Interfaces[i].Name == name {
				add(&d.in.Host.Interfaces[i])
			}
		}
	}
	for i := range d.in.Host.Interfaces {
		add(&d.in.Host.Interfaces[i])
	}
	return out
}

// Interfaces of CNIs, containers and tunnels, by the beginning of their names
// and by kind.
var (
	excludedNames = []string{
		"lo", "kilo", "flannel", "cni", "cilium", "lxc", "cali", "tunl", "vxlan", "weave", "kube-", "nodelocaldns",
		"docker", "br-", "podman", "virbr", "lxd", "veth", "dummy", "nerdctl",
		"wg", "tun", "tap", "tailscale", "zt", "ppp", "ipsec", "gre", "sit", "ip6tnl", "utun", "wt",
	}
	excludedKinds = []string{"wireguard", "tun", "vxlan", "geneve", "ipip", "sit", "gre", "ip6tnl", "dummy"}
)

func (d *decider) excludedInterface(i *model.Interface) bool {
	if i.Name == d.in.Interface || slices.Contains(excludedKinds, i.Kind) {
		return true
	}
	for _, n := range excludedNames {
		if strings.HasPrefix(i.Name, n) {
			return true
		}
	}
	return MatchName(d.in.Settings.ExcludeInterfaces, i.Name) || MatchName(d.in.Adapter.ExcludeInterfaces, i.Name)
}

// MatchName tells whether a name is among patterns: names, or beginnings of
// names that end in '*'.
func MatchName(patterns []string, name string) bool {
	for _, p := range patterns {
		if begin, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(name, begin) || p == name {
			return true
		}
	}
	return false
}

// unusable says why a can be no node's address; "" where it can.
func (d *decider) unusable(a netip.Addr) string {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return "it is no address"
	case a.IsLoopback():
		return "it is a loopback address"
	case a.IsLinkLocalUnicast():
		return "it is a link-local address"
	case a.IsMulticast():
		return "it is a multicast address"
	case within(d.in.Overlay, a):
		return "it lies in a pod, Service or WireGuard prefix of the cluster"
	case within(d.in.Settings.ExcludeCIDRs, a):
		return "it lies in --exclude-cidrs"
	}
	return ""
}

func (d *decider) public(a netip.Addr) bool {
	return within(d.in.Settings.PublicCIDRs, a) || Public(a)
}

func within(ps []netip.Prefix, a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
