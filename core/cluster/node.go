package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// The kinds of warnings about what was read.
const (
	BadAnnotation  = "BadAnnotation"
	BadNodeAddress = "BadNodeAddress"
	BadPodCIDR     = "BadPodCIDR"
	NoPodPrefix    = "NoPodPrefix"
	NoLabel        = "NoLabel"
	// UnknownAnnotation is one under our prefix that means nothing: a slip of
	// the pen, most likely.
	UnknownAnnotation = "UnknownAnnotation"
)

// ParseNode reads what the mesh knows of a node: what its agent published, or,
// before one spoke, what the Node object says. A field that cannot be read is
// left out and becomes a warning; everything else counts.
//
// An agent has spoken when its key and its location are there. Agents of Kilo
// publish no kilo.squat.ai/mesh-location, so that to us they have not.
func ParseNode(n *corev1.Node, topologyLabel string) (model.Node, []model.Warning) {
	in, warnings := ParseInputs(n, topologyLabel)
	node, more := parseNode(n, in)
	return node, append(warnings, more...)
}

func parseNode(n *corev1.Node, in model.Inputs) (model.Node, []model.Warning) {
	r := reporter{object: "node/" + n.Name}
	node := model.Node{
		Name:               n.Name,
		UID:                string(n.UID),
		Ready:              ready(n),
		Leader:             in.Leader,
		ForcedEndpoint:     !in.ForceEndpoint.IsZero(),
		Keepalive:          in.Keepalive,
		AllowedLocationIPs: in.AllowedLocationIPs,
	}
	if key := parse(&r, n, api.Key, model.ParseKey); !key.IsZero() {
		if location, ok := n.Annotations[api.MeshLocation]; ok {
			node.Spoken, node.Key, node.Location = true, key, location
			parsePublished(&r, n, &node)
			return node, r.warnings
		}
	}
	node.Location = location(in)
	node.PodPrefixes = in.PodCIDRs
	node.InternalIPs = internalIPs(in)
	return node, r.warnings
}

// parsePublished reads the outputs of an agent beside its key and location.
func parsePublished(r *reporter, n *corev1.Node, node *model.Node) {
	node.Endpoint = parse(r, n, api.Endpoint, parseEndpoint)
	node.InternalIPs = parse(r, n, api.InternalIP, parseHosts)
	for _, p := range parse(r, n, api.WireGuardIP, parseHosts) {
		node.WireGuardIPs = append(node.WireGuardIPs, p.Addr())
	}
	node.PodPrefixes = parse(r, n, api.PodPrefixes, parsePodPrefixes)
	node.Granularity = parse(r, n, api.Granularity, parseGranularity)
	node.Epoch = parse(r, n, api.Epoch, parseEpoch)
	node.Asked = n.Annotations[api.Asked]
	node.Slot = parse(r, n, api.Slot, parseSlot)
	node.Discovered = parse(r, n, api.DiscoveredEndpoints, parseDiscovered)
	node.TunnelMTU = parse(r, n, api.TunnelMTU, parseMTU)
	node.Tunnel = parse(r, n, api.Tunnel, parseTunnel)
	node.Silent = parseNames(n.Annotations[api.Silent])
	node.NodesOnly = n.Annotations[api.NodesOnly] == "true"
	// What people annotate wins over the agent's flags.
	node.Leader = node.Leader || n.Annotations[api.FlagLeader] == "true"
	node.ForcedEndpoint = node.ForcedEndpoint || n.Annotations[api.FlagForcedEndpoint] == "true"
	if node.Keepalive == 0 {
		node.Keepalive = parse(r, n, api.FlagKeepalive, parseKeepalive)
	}
	if len(node.AllowedLocationIPs) == 0 {
		node.AllowedLocationIPs = parse(r, n, api.FlagAllowedLocationIPs, parsePrefixes)
	}
	if len(node.PodPrefixes) == 0 && !node.NodesOnly {
		r.add(NoPodPrefix, "its agent publishes no prefix of its pods: other locations reach the node but not its pods; see whether the host CNI runs on the node, and what the agent itself warns of")
	}
}

// parseNames reads a list of names of Nodes, sorted. What is no name is no
// Node's, and does no harm.
func parseNames(s string) []string {
	names := items(s)
	slices.Sort(names)
	return slices.Compact(names)
}

// ParseInputs reads what people and the cluster say about a node. What an
// agent published is no part of it.
func ParseInputs(n *corev1.Node, topologyLabel string) (model.Inputs, []model.Warning) {
	r := reporter{object: "node/" + n.Name}
	in := model.Inputs{
		LocationAnnotation: strings.TrimSpace(n.Annotations[api.Location]),
		ForceEndpoint:      parse(&r, n, api.ForceEndpoint, parseEndpoint),
		Keepalive:          parse(&r, n, api.PersistentKeepalive, parseKeepalive),
		AllowedLocationIPs: parse(&r, n, api.AllowedLocationIPs, parsePrefixes),
	}
	if topologyLabel != "" {
		in.TopologyLabel = n.Labels[topologyLabel]
	}
	if label, ok := n.Labels[api.Location]; ok && !ownLabel(n) {
		in.LocationLabel = label
	}
	if l := in.LocationAnnotation; l != "" && !isLabelValue(l) {
		r.add(NoLabel, fmt.Sprintf("%s: %s is no value that a label can have; the location counts, but the label of that name is left out and nodeSelectors do not find the node by it. Labels take up to 63 letters, digits, '-', '_' and '.'", api.Location, quote(l)))
	}
	_, in.Leader = n.Annotations[api.Leader]
	switch forced, ok := n.Annotations[api.ForceInternalIP]; {
	case ok && (strings.TrimSpace(forced) == "" || strings.TrimSpace(forced) == "-"):
		in.NoInternalIP = true
	case ok:
		in.ForceInternalIPs = parse(&r, n, api.ForceInternalIP, parseHosts)
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		ip, err := parseAddr(a.Address)
		if err != nil {
			r.add(BadNodeAddress, fmt.Sprintf("status.addresses, %s: %v; it is ignored, kubelet's --node-ip sets it", a.Type, err))
			continue
		}
		if a.Type == corev1.NodeInternalIP {
			in.NodeInternalIPs = append(in.NodeInternalIPs, ip)
		} else {
			in.NodeExternalIPs = append(in.NodeExternalIPs, ip)
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	pods, err := parsePodPrefixes(strings.Join(cidrs, ","))
	if err != nil {
		r.add(BadPodCIDR, fmt.Sprintf("spec.podCIDRs: %v; it is ignored", err))
	}
	in.PodCIDRs = pods
	unknownAnnotations(&r, n)
	return in, r.warnings
}

// location is where a node stands of which no agent has spoken yet.
func location(in model.Inputs) string {
	if in.LocationAnnotation != "" {
		return in.LocationAnnotation
	}
	if in.LocationLabel != "" {
		return in.LocationLabel
	}
	return in.TopologyLabel
}

// internalIPs are the internal addresses of a node of which no agent has
// spoken yet.
func internalIPs(in model.Inputs) []netip.Prefix {
	if in.NoInternalIP {
		return nil
	}
	if len(in.ForceInternalIPs) > 0 {
		return in.ForceInternalIPs
	}
	var out []netip.Prefix
	for _, a := range in.NodeInternalIPs {
		if !slices.ContainsFunc(out, func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() }) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return v4First(out)
}

// ready is false only when the cluster says so. A Node without the condition,
// as the first moments of one are, counts as ready.
func ready(n *corev1.Node) bool {
	if n.DeletionTimestamp != nil {
		return false
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

// ownLabel tells whether the label kilo.squat.ai/location is the agent's
// mirror of the published location, and not somebody's input.
func ownLabel(n *corev1.Node) bool {
	label, ok := n.Labels[api.Location]
	mirrored, is := n.Annotations[api.MirroredLocation]
	return ok && is && label == mirrored
}

// parsePodPrefixes is parsePrefixes without the prefix that holds every address.
func parsePodPrefixes(list string) ([]netip.Prefix, error) {
	prefixes, err := parsePrefixes(list)
	all := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 })
	if all < 0 {
		return prefixes, err
	}
	bad := wrong(prefixes[all].String(), "no node has all addresses there are")
	prefixes = slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 })
	if err != nil {
		bad = fmt.Errorf("%w; %w", err, bad)
	}
	return prefixes, bad
}

func parseGranularity(s string) (model.Granularity, error) {
	switch g := model.Granularity(s); g {
	case "", model.PerLocation, model.Full, model.Cross:
		return g, nil
	}
	return "", wrong(s, "want location, full or cross")
}

func parseEpoch(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > model.MaxEpoch {
		return 0, wrong(s, fmt.Sprintf("want a whole number from 0 to %d", uint64(model.MaxEpoch)))
	}
	return n, nil
}

func parseSlot(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > state.TunnelSlots {
		return 0, wrong(s, fmt.Sprintf("want a number from 1 to %d", state.TunnelSlots))
	}
	return n, nil
}

func parseMTU(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, wrong(s, "want bytes from 0 to 65535")
	}
	return int(n), nil
}

func parseTunnel(s string) (string, error) {
	if s != "" && s != "kernel" && s != "userspace" {
		return "", wrong(s, "want kernel or userspace")
	}
	return s, nil
}

// reporter collects warnings about one object.
type reporter struct {
	object   string
	warnings []model.Warning
}

func (r *reporter) add(kind, message string) {
	r.warnings = append(r.warnings, model.Warning{Kind: kind, Object: r.object, Message: message})
}

// parse reads one annotation with f. An annotation that is absent or blank is
// f's zero value; what f returns beside an error is kept.
func parse[T any](r *reporter, n *corev1.Node, name string, f func(string) (T, error)) T {
	value := strings.TrimSpace(n.Annotations[name])
	if value == "" {
		var none T
		return none
	}
	v, err := f(value)
	if err != nil {
		advice := "what is wrong is ignored, the rest counts"
		if slices.Contains(api.Outputs(), name) {
			advice = "the node's agent writes this annotation; look at its log if it stays"
		}
		r.add(BadAnnotation, fmt.Sprintf("%s: %v; %s", name, err, advice))
	}
	return v
}
