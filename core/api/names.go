package api

// The Peer resource.
const (
	Group    = "kilo.squat.ai"
	Version  = "v1alpha1"
	Kind     = "Peer"
	Resource = "peers"
)

// Inputs: annotations of a Node that people write. Agents only read them.
const (
	// Location names the group of nodes that reach each other privately. As a
	// label it is an input too, where somebody other than the agent set it.
	Location = "kilo.squat.ai/location"
	// ForceEndpoint is the host:port at which other locations reach the node.
	ForceEndpoint = "kilo.squat.ai/force-endpoint"
	// ForceInternalIP is the node's private address with its prefix length, at
	// most one per family, comma separated; "" or "-": the node has none.
	ForceInternalIP = "kilo.squat.ai/force-internal-ip"
	// Leader, with any value, asks for the node to be its location's gateway.
	Leader = "kilo.squat.ai/leader"
	// PersistentKeepalive is in whole seconds, 0 to 65535.
	PersistentKeepalive = "kilo.squat.ai/persistent-keepalive"
	// AllowedLocationIPs are further prefixes that are reached through the
	// node's location, comma separated.
	AllowedLocationIPs = "kilo.squat.ai/allowed-location-ips"
)

// Outputs: annotations that an agent writes on its own Node and nowhere else.
const (
	Key                 = "kilo.squat.ai/key"                  // base64
	Endpoint            = "kilo.squat.ai/endpoint"             // host:port
	InternalIP          = "kilo.squat.ai/internal-ip"          // addr/len, comma separated
	WireGuardIP         = "kilo.squat.ai/wireguard-ip"         // addr/32 or addr/128, comma separated
	Granularity         = "kilo.squat.ai/granularity"          // "location", "full", "cross"
	DiscoveredEndpoints = "kilo.squat.ai/discovered-endpoints" // {"KEY":{"IP":"…","Port":N,"Zone":""}}
	MeshLocation        = "kilo.squat.ai/mesh-location"        // there, with any value: an agent has spoken
	PodPrefixes         = "kilo.squat.ai/pod-prefixes"         // comma separated
	Epoch               = "kilo.squat.ai/epoch"                // decimal
	Asked               = "kilo.squat.ai/asked"
	Slot                = "kilo.squat.ai/slot"       // decimal, from 1
	TunnelMTU           = "kilo.squat.ai/tunnel-mtu" // bytes
	Tunnel              = "kilo.squat.ai/tunnel"     // "kernel", "userspace"; a label too
	Silent              = "kilo.squat.ai/silent"     // names of nodes, comma separated
	NodesOnly           = "kilo.squat.ai/nodes-only" // "true"
	// Settings that the agent got by flags, where no annotation says them.
	FlagLeader             = "kilo.squat.ai/flag-leader"               // "true"
	FlagForcedEndpoint     = "kilo.squat.ai/flag-force-endpoint"       // "true": Endpoint was forced
	FlagKeepalive          = "kilo.squat.ai/flag-persistent-keepalive" // seconds
	FlagAllowedLocationIPs = "kilo.squat.ai/flag-allowed-location-ips" // comma separated
	// MirroredLocation is the value that the agent gave the label Location.
	// The label is the agent's exactly while the two are equal.
	MirroredLocation = "kilo.squat.ai/mirrored-location"
)

// What kgctl cluster link writes on the Peers that it makes.
const (
	// LinkedCluster and LinkedClusterID are labels: how the other cluster is called
	// here, and the UID of its namespace kube-system, by which it is known.
	LinkedCluster   = "kilo.squat.ai/linked-cluster"
	LinkedClusterID = "kilo.squat.ai/linked-cluster-id"
	// LinkedLocation is an annotation: which of its locations the Peer is.
	LinkedLocation = "kilo.squat.ai/linked-location"
)

// MeshCondition is the type of the Node condition that tells an agent's
// transitions.
const MeshCondition = "KiloMesh"

// Inputs returns the names of all annotations that people write.
func Inputs() []string {
	return []string{Location, ForceEndpoint, ForceInternalIP, Leader, PersistentKeepalive, AllowedLocationIPs}
}

// Legacy returns the names of annotations that agents of Kilo write and ours do
// not read.
func Legacy() []string {
	return []string{Group + "/last-seen", Group + "/cni-compatibility-ip"}
}

// Outputs returns the names of all annotations that an agent writes.
func Outputs() []string {
	return []string{
		Key, Endpoint, InternalIP, WireGuardIP, Granularity, DiscoveredEndpoints,
		MeshLocation, MirroredLocation, PodPrefixes, Epoch, Asked, Slot, TunnelMTU,
		Tunnel, NodesOnly, Silent,
		FlagLeader, FlagForcedEndpoint, FlagKeepalive, FlagAllowedLocationIPs,
	}
}
