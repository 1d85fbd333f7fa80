package cilium

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/kilo-overlay/kilo/core/adapter"
)

// Name is the adapter's word for --adapter.
const Name = "cilium"

// DefaultSocket is where Cilium's agent answers.
const DefaultSocket = "/var/run/cilium/cilium.sock"

// Encapsulation says when a location's traffic to and from its gateway goes
// through the mesh's own VXLAN. All nodes of a location have to say the same.
type Encapsulation string

const (
	// Always is the default: it works on any network.
	Always Encapsulation = "always"
	// CrossSubnet does it only between nodes that share no subnet.
	CrossSubnet Encapsulation = "crosssubnet"
	// Never leaves the network to carry addresses of other locations.
	Never Encapsulation = "never"
)

// Options tells an Adapter where to look.
type Options struct {
	// Socket is where Cilium's agent answers; "": DefaultSocket.
	Socket string
	// Node is this Node's name, and so its CiliumNode's.
	Node string
	// Nodes reads CiliumNodes. Needed for Discover and Watch.
	Nodes dynamic.Interface
	// Known returns the pod prefixes that the node published before; they stand
	// in for a CiliumNode while no API server answers. A nil function knows none.
	Known func() []netip.Prefix
	// Interface is the WireGuard link's name, and Port its UDP port.
	Interface string
	Port      uint16
	// WireGuardSubnets are what WireGuard addresses are taken from.
	WireGuardSubnets []netip.Prefix
	// Encapsulation; "": Always.
	Encapsulation Encapsulation
	// PollEvery is how often Watch looks whether Cilium's agent was started anew;
	// 0: every two seconds.
	PollEvery time.Duration
}

// Adapter is the adapter for Cilium. Make it with New.
type Adapter struct {
	o     Options
	agent agent

	mu   sync.Mutex
	node *unstructured.Unstructured // as the watch saw it last; nil: it did not
}

var _ adapter.Adapter = (*Adapter)(nil)

// New returns an Adapter. It does not look at anything yet.
func New(o Options) *Adapter {
	if o.Socket == "" {
		o.Socket = DefaultSocket
	}
	if o.Encapsulation == "" {
		o.Encapsulation = Always
	}
	if o.PollEvery <= 0 {
		o.PollEvery = 2 * time.Second
	}
	return &Adapter{o: o, agent: newAgent(o.Socket)}
}

// Name implements adapter.Adapter.
func (*Adapter) Name() string { return Name }

// Chaining asks the agent at that socket behind which CNI it is chained; "": it
// is the node's CNI itself. An error means that nobody answers there.
func Chaining(ctx context.Context, socket string) (string, error) {
	if socket == "" {
		socket = DefaultSocket
	}
	a := newAgent(socket)
	defer a.close()
	said, err := a.ask(ctx)
	if err != nil {
		return "", err
	}
	return said.chaining(), nil
}

// Discover implements adapter.Adapter.
func (a *Adapter) Discover(ctx context.Context) (adapter.Facts, error) {
	said, err := a.agent.ask(ctx)
	if err != nil {
		return adapter.Facts{}, err
	}
	if err := said.servable(); err != nil {
		return adapter.Facts{}, err
	}
	node, err := a.ownNode(ctx, said)
	if err != nil {
		return adapter.Facts{}, fmt.Errorf("pod prefixes of this node: %w", err)
	}
	f := said.facts(node)
	f.Warnings = said.warnings(&a.o, node)
	return f, nil
}
