package cilium

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/cilium/api/v1/models"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/state"
)

// tunnelOverhead is what VXLAN and Geneve add to a pod's packet over IPv4, in
// bytes: outer IP header 20, UDP 8, the tunnel's header 8, Ethernet 14.
const tunnelOverhead = 50

// FromHost is the mark of WireGuard's own packets behind Cilium's chain CILIUM_OUTPUT,
// which sets the bits "from the host" in what the node itself sends.
const FromHost = state.Mark | 0xc00

// servable tells why Cilium, the way it runs here, cannot be served; nil: it can.
func (s *answers) servable() error {
	if mode := s.chaining(); mode != "" {
		return &adapter.Unsupported{
			What: fmt.Sprintf("Cilium chained behind another CNI (%s)", mode),
			Do:   "that CNI does the routing: where it is Flannel, use --adapter=flannel or auto",
		}
	}
	if s.health.Routing == nil || s.health.Routing.InterHostRoutingMode == "" || s.config.IpamMode == "" {
		return &adapter.Unsupported{
			What: fmt.Sprintf("Cilium of version %s, whose agent does not say how it routes,", s.version()),
			Do:   "upgrade Cilium to " + oldest + " or later",
		}
	}
	// Others give pods single addresses that no prefix sums up, by means of the
	// cloud's own routes.
	if served := []string{"kubernetes", "cluster-pool", "cluster-pool-v2beta", "multi-pool"}; !slices.Contains(served, s.config.IpamMode) {
		return &adapter.Unsupported{
			What: fmt.Sprintf("Cilium's IPAM mode %q", s.config.IpamMode),
			Do:   "set ipam.mode to kubernetes, cluster-pool or multi-pool",
		}
	}
	return nil
}

// facts are what the agent and the CiliumNode say, in the mesh's words.
func (s *answers) facts(n node) adapter.Facts {
	f := adapter.Facts{
		CNI:               Name,
		Mode:              s.mode(),
		PodPrefixes:       n.prefixes,
		NodesOnly:         s.tunnels() && !s.bpfHostRouting(),
		Unnumbered:        true,
		TunnelMarks:       []uint32{FromHost},
		DeviceMTU:         int(s.config.DeviceMTU),
		PodMTU:            int(s.config.DeviceMTU),
		PodMTUSetting:     adapter.Setting{Where: `"MTU" in Cilium's Helm values ("mtu" in ConfigMap cilium-config)`},
		ExcludeInterfaces: []string{"cilium_*", "lxc*"},
	}
	if k := s.health.KubeProxyReplacement; k != nil {
		f.Device = k.DirectRoutingDevice
	}
	if route := int(s.config.RouteMTU); route > 0 {
		f.PodMTU = route // of their routes, which is what they go by
	}
	if s.tunnels() {
		f.PodOverhead = tunnelOverhead
		// Cilium takes its tunnel's own headers off what is set.
		f.PodMTUSetting.Add = max(f.DeviceMTU-f.PodMTU, 0)
		return f
	}
	// In native mode what is not masqueraded is the pods' whole network.
	if m := s.health.Masquerading; m != nil {
		for _, text := range []string{m.SnatExclusionCidrV4, m.SnatExclusionCidrV6} {
			if p, err := netip.ParsePrefix(text); err == nil {
				f.ClusterPrefixes = append(f.ClusterPrefixes, p.Masked())
			}
		}
	}
	return f
}

// bpfHostRouting tells that Cilium brings pods' packets past the kernel's firewall.
// In tunnel mode what pods send to a node, not to its pods, then leaves with the
// pod's own address, so that pod prefixes have to cross too; what pods say to pods
// is inside Cilium's tunnel before any route is asked.
func (s *answers) bpfHostRouting() bool {
	return s.health.Routing.IntraHostRoutingMode == models.RoutingIntraHostRoutingModeBPF
}

// mode is for people: "tunnel vxlan, host routing legacy".
func (s *answers) mode() string {
	words := []string{strings.ToLower(s.health.Routing.InterHostRoutingMode)}
	if s.tunnels() && s.health.Routing.TunnelProtocol != "" {
		words[0] += " " + s.health.Routing.TunnelProtocol
	}
	if r := s.health.Routing.IntraHostRoutingMode; r != "" {
		words = append(words, "host routing "+strings.ToLower(r))
	}
	if m := s.health.Masquerading; m != nil && m.Enabled {
		words = append(words, "masquerading by "+strings.ToLower(m.Mode))
	}
	if k := s.health.KubeProxyReplacement; k != nil && k.Mode == models.KubeProxyReplacementModeTrue {
		words = append(words, "kube-proxy replaced")
	}
	return strings.Join(words, ", ")
}
