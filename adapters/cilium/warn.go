package cilium

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/cilium/api/v1/models"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// warnings are settings of Cilium's that keep the mesh from working, or working
// well, with what to do about each.
func (s *answers) warnings(o *Options, n node) []model.Warning {
	var out []model.Warning
	warn := func(kind, format string, args ...any) {
		out = append(out, model.Warning{Kind: kind, Object: "node/" + o.Node, Message: fmt.Sprintf(format, args...)})
	}
	for _, name := range []string{o.Interface, state.VXLANLink} {
		if slices.Contains(s.devices(), name) {
			warn("CiliumDevices", "Cilium takes %s, a link of the mesh, for one of the node's devices: pods get its MTU, and Cilium's programs sit on it. Set \"devices\" in Cilium's Helm values to the node's own interfaces (eth+, say), and restart Cilium's agents", name)
		}
	}
	if f := s.health.HostFirewall; f != nil && f.Mode == models.HostFirewallModeEnabled {
		warn("CiliumHostFirewall", "Cilium's host firewall is on. Where a CiliumClusterwideNetworkPolicy selects nodes, it has to let in UDP port %d from the entities world and remote-node, or a gateway behind NAT does not get through to this one, and UDP port %d from remote-node",
			o.Port, vxlanPort)
	}
	if !s.tunnels() && s.flag("EnableAutoDirectRouting") && !s.flag("DirectRoutingSkipUnreachable") {
		warn("CiliumDirectRouting", "Cilium routes natively and takes nodes of other subnets for an error, which it tries to mend again and again. Set directRoutingSkipUnreachable to true in Cilium's Helm values (direct-routing-skip-unreachable)")
	}
	if e := s.health.Encryption; e != nil && e.Mode != "" && e.Mode != models.EncryptionStatusModeDisabled {
		warn("CiliumEncryption", "Cilium encrypts too (%s): what crosses locations is encrypted twice, at the cost of throughput and MTU. Set encryption.enabled to false in Cilium's Helm values, unless what stays inside a location has to be encrypted as well", e.Mode)
		out[len(out)-1].Note = true
	}
	for _, p := range n.prefixes {
		for _, subnet := range o.WireGuardSubnets {
			if p.Overlaps(subnet) {
				warn("OverlappingPrefixes", "Cilium gives pods of this node addresses in %s, and the mesh takes its WireGuard addresses from %s: give kg another --subnet, or Cilium another ipam.operator.clusterPoolIPv4PodCIDRList", p, subnet)
			}
		}
		if i := slices.IndexFunc(n.addresses, p.Contains); i >= 0 {
			warn("OverlappingPrefixes", "Cilium gives pods of this node addresses in %s, in which the node's own %s lies: give Cilium another ipam.operator.clusterPoolIPv4PodCIDRList", p, n.addresses[i])
		}
	}
	if overlap, with, ok := nested(n.prefixes); ok {
		warn("OverlappingPrefixes", "the CiliumNode of this node has pod prefixes %s and %s, which overlap: mend Cilium's pools", overlap, with)
	}
	if len(n.bad) > 0 {
		warn("CiliumNode", "the CiliumNode of this node has pod prefixes that are none, and are left out: %s", strings.Join(n.bad, ", "))
	}
	return out
}

// nested finds two of sorted prefixes that overlap.
func nested(sorted []netip.Prefix) (a, b netip.Prefix, found bool) {
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Overlaps(sorted[i]) {
			return sorted[i-1], sorted[i], true
		}
	}
	return a, b, false
}
