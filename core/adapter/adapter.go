package adapter

import (
	"context"
	"net/netip"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Adapter knows one host CNI. Discover and Watch are called from one goroutine
// each and may run at the same time; Inject is pure and may run anywhere.
type Adapter interface {
	// Name is the word for --adapter: "flannel".
	Name() string

	// Discover reads the host CNI's view of this node. It changes nothing. A
	// CNI that is not up yet is an error that says what is missing; the agent
	// keeps what it had and asks again. A CNI or backend that cannot be served
	// is an *Unsupported error.
	Discover(ctx context.Context) (Facts, error)

	// Watch calls changed whenever Discover might answer something new, until
	// ctx ends. These are hints: too many are harmless, and the agent asks now
	// and then without any. It returns ctx's error, or what kept it from
	// watching.
	Watch(ctx context.Context, changed func()) error

	// Inject says what to add on this node. It is pure: the same View and
	// Facts give the same Additions, in any process. An error is reported; the
	// Additions that come with it are used. What they lack is cut from other
	// locations, never in clear.
	Inject(v View, f Facts) (Additions, error)
}

// Unsupported says that the host CNI runs in a way that no adapter serves.
type Unsupported struct {
	// What was found, by name ("flannel backend \"udp\"").
	What string
	// Do says what a person can do about it.
	Do string
}

func (u *Unsupported) Error() string { return u.What + " is not supported: " + u.Do }

// Facts is what an adapter found on this node.
type Facts struct {
	// CNI and Mode are for people: "flannel", "vxlan".
	CNI, Mode string
	// PodPrefixes are the prefixes whose pods live on this node.
	PodPrefixes []netip.Prefix
	// ClusterPrefixes are the CNI's whole pod networks; empty if unknown.
	ClusterPrefixes []netip.Prefix
	// NodesOnly is true where the CNI tunnels pods from node to node itself,
	// so that only node addresses cross between locations.
	NodesOnly bool
	// Unnumbered asks for a WireGuard link without any address, because the
	// CNI would take a numbered one for one of its own devices. The node's IPv4
	// WireGuard address then stands on the loopback link.
	Unnumbered bool
	// TunnelMarks are what the host CNI makes of the mark of WireGuard's own
	// packets (state.Mark) while they leave the node.
	TunnelMarks []uint32
	// Device is the interface through which pods of other nodes of the
	// location are reached ("flannel.1", "eth0"); "" while unknown.
	Device string
	// DeviceMTU is that interface's MTU in bytes; PodMTU is what pods get.
	DeviceMTU, PodMTU int
	// PodMTUSetting is where a person changes the latter.
	PodMTUSetting Setting
	// PodOverhead is what the CNI adds, in bytes, to a pod's packet for another
	// location: the headers of its own tunnel, where it has one that rides on ours,
	// otherwise 0.
	PodOverhead int
	// NextHops are the CNI's own routes to the pod prefixes of other nodes, as
	// they stand in main. Sorted by prefix.
	NextHops []NextHop
	// ExcludeInterfaces are names, or prefixes of names that end in '*', of
	// interfaces that belong to the CNI: their addresses are no candidates for
	// endpoints or internal addresses.
	ExcludeInterfaces []string
	// Warnings are what the adapter wants a person to know.
	Warnings []model.Warning
}

// Setting is a number in somebody else's configuration.
type Setting struct {
	// Where is for people, as the object of "set": "\"mtu\" in …".
	Where string
	// Add is what the number there is larger than the value meant.
	Add int
}

// NextHop is how the host CNI reaches one pod prefix of another node.
type NextHop struct {
	Prefix netip.Prefix
	Via    netip.Addr // invalid: straight out of Device
	Device string
	OnLink bool
	MTU    int // bytes, of the route or else the device
}

// View is what an adapter may know of the mesh when it injects.
type View struct {
	Self model.Node
	// Serving tells whether this node is its location's serving gateway.
	Serving bool
	// Gateway is the serving gateway of this node's own location; nil while
	// there is none.
	Gateway *model.Node
	// Members are the other nodes of the location that run an agent, sorted
	// by name.
	Members []model.Node
	// Remote is what must reach other locations through the gateway, one entry
	// a prefix, sorted. Empty on the gateway itself, where the core leads it
	// into the tunnel.
	Remote []Remote
	// Interface is the WireGuard link's name.
	Interface string
	// LAN is the interface that has Self's internal address; zero: none has.
	LAN LAN
}

// LAN is the interface by which a node reaches the other nodes of its location.
type LAN struct {
	Device string
	MTU    int // bytes
}

// Remote is one prefix of another location.
type Remote struct {
	Prefix netip.Prefix
	// Location it belongs to; for a Peer "peer/NAME".
	Location string
	// MTU is the largest packet in bytes that fits all tunnels on the way,
	// counted from the own location's gateway; 0: unknown.
	MTU int
}

// Additions is what an adapter wants in this node's kernel beside what the
// core puts there.
type Additions struct {
	Links  []state.Link
	Routes []state.Route
}
