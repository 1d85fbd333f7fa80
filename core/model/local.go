package model

import (
	"net/netip"
	"time"
)

// Inputs is what people and the cluster say about the local node. The agent
// reads it and never writes it; what the agent published itself is not here.
type Inputs struct {
	// LocationAnnotation is kilo.squat.ai/location; "" when absent or empty.
	LocationAnnotation string
	// LocationLabel is the label of that name, when somebody other than the
	// agent set it.
	LocationLabel string
	// TopologyLabel is the value of the --topology-label label.
	TopologyLabel string
	// ForceEndpoint is kilo.squat.ai/force-endpoint.
	ForceEndpoint Endpoint
	// ForceInternalIPs is kilo.squat.ai/force-internal-ip. With
	// NoInternalIP the annotation is "" or "-": the node has none.
	ForceInternalIPs []netip.Prefix
	NoInternalIP     bool
	// Leader is kilo.squat.ai/leader being there.
	Leader bool
	// Keepalive is kilo.squat.ai/persistent-keepalive; 0: not set.
	Keepalive time.Duration
	// AllowedLocationIPs is kilo.squat.ai/allowed-location-ips.
	AllowedLocationIPs []netip.Prefix
	// NodeInternalIPs and NodeExternalIPs are status.addresses of the Node.
	NodeInternalIPs, NodeExternalIPs []netip.Addr
	// PodCIDRs is spec.podCIDRs of the Node.
	PodCIDRs []netip.Prefix
}

// Published is what the local agent says about its node: the agent's outputs,
// written to the Node only where they differ from what stands there.
type Published struct {
	Key          Key
	Location     string
	Endpoint     Endpoint // zero: none, the others wait to be spoken to
	InternalIPs  []netip.Prefix
	WireGuardIPs []netip.Addr
	PodPrefixes  []netip.Prefix
	Granularity  Granularity
	Epoch        uint64
	Asked        string
	Slot         int
	Discovered   map[Key]netip.AddrPort
	Silent       []string
	TunnelMTU    int
	Tunnel       string
	NodesOnly    bool
	// FromFlags are settings that an annotation could have said and did not.
	FromFlags FromFlags
}

// FromFlags are per-node settings that came from the agent's flags. Other nodes
// need them, and the annotations of that name are for people alone to write.
type FromFlags struct {
	Leader             bool
	ForcedEndpoint     bool
	Keepalive          time.Duration
	AllowedLocationIPs []netip.Prefix
}
