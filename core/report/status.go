package report

import (
	"net/netip"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// Status is what an agent tells about itself at /status, as JSON. It holds no
// secret: public keys only, and of preshared keys nothing at all.
type Status struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Node    string    `json:"node"`
	// Ready: see /readyz.
	Ready bool `json:"ready"`
	// Location is the node's own as the cluster has read it back.
	Location string `json:"location"`
	// Role is "gateway", "member" or "waiting".
	Role string `json:"role"`
	// Waiting says in sentences what this node does not know yet and why.
	Waiting []string `json:"waiting,omitempty"`
	// Absent are nodes that are not in the mesh, and what is missing of them.
	Absent []string `json:"absent,omitempty"`

	Key          model.Key      `json:"key"`
	Endpoint     string         `json:"endpoint,omitempty"`
	InternalIPs  []netip.Prefix `json:"internalIPs,omitempty"`
	WireGuardIPs []netip.Addr   `json:"wireGuardIPs,omitempty"`

	Tunnel    Tunnel          `json:"tunnel"`
	Adapter   Adapter         `json:"adapter"`
	Locations []Location      `json:"locations,omitempty"`
	Peers     []Peer          `json:"peers,omitempty"`
	Warnings  []model.Warning `json:"warnings,omitempty"`
	Last      Pass            `json:"lastReconcile"`
}

// Tunnel is the WireGuard device.
type Tunnel struct {
	Interface string `json:"interface"`
	Kind      string `json:"kind,omitempty"` // "kernel" or "userspace"; "" before there is one
	Port      uint16 `json:"port"`
	MTU       int    `json:"mtu,omitempty"` // bytes
}

// Adapter is what is known of the host CNI.
type Adapter struct {
	Name            string         `json:"name,omitempty"`
	CNI             string         `json:"cni,omitempty"`
	Mode            string         `json:"mode,omitempty"`
	PodPrefixes     []netip.Prefix `json:"podPrefixes,omitempty"`
	ClusterPrefixes []netip.Prefix `json:"clusterPrefixes,omitempty"`
	NodesOnly       bool           `json:"nodesOnly,omitempty"`
	Device          string         `json:"device,omitempty"`
	DeviceMTU       int            `json:"deviceMTU,omitempty"`
	PodMTU          int            `json:"podMTU,omitempty"`
	// BestPodMTU fits every way to other locations; 0: not known.
	BestPodMTU int `json:"bestPodMTU,omitempty"`
	// Error is why the last attempt failed; what is above it is then the last
	// answer that there was.
	Error string `json:"error,omitempty"`
}

// Location is one location as this node sees it. All nodes see the same.
type Location struct {
	Name    string   `json:"name"`
	Nodes   []string `json:"nodes"`
	Gateway string   `json:"gateway,omitempty"`
	// Why says what made that node the gateway.
	Why   string `json:"why,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	// Candidates could serve, best first.
	Candidates []string `json:"candidates,omitempty"`
	// Live tells whether the location answered lately; nil where nobody asks.
	Live *bool `json:"live,omitempty"`
}

// Peer is one WireGuard peer of this node's device.
type Peer struct {
	Name     string    `json:"name,omitempty"` // "node/w1", "peer/laptop"; "" for a peer that no plan names
	Key      model.Key `json:"key"`
	Endpoint string    `json:"endpoint,omitempty"`
	// LastHandshake is absent where there was none.
	LastHandshake *time.Time `json:"lastHandshake,omitempty"`
	ReceivedBytes int64      `json:"receivedBytes"`
	SentBytes     int64      `json:"sentBytes"`
}

// Pass is one recomputation of everything.
type Pass struct {
	At  time.Time `json:"at,omitzero"`
	Why string    `json:"why,omitempty"` // what woke the loop
	// Took is the time in seconds.
	Took float64 `json:"tookSeconds"`
	// Snapshot is where the knowledge came from: "api", "disk" (the last good
	// one, or not all of it was read yet) or "none".
	Snapshot string `json:"snapshot"`
	// Changes is how many changes the kernel needed.
	Changes int `json:"changes"`
	// Errors are what failed; it is tried again soon.
	Errors []string `json:"errors,omitempty"`
}
