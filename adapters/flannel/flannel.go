package flannel

import (
	"context"
	"time"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
)

// Name is the adapter's word for --adapter.
const Name = "flannel"

// DefaultSubnetFile is where flanneld says what it gave this node.
const DefaultSubnetFile = "/run/flannel/subnet.env"

// DefaultNetConfFiles returns where Flannel's network configuration is found,
// in the order in which they are tried: Flannel's own manifest, then k3s.
func DefaultNetConfFiles() []string {
	return []string{
		"/etc/kube-flannel/net-conf.json",
		"/var/lib/rancher/k3s/agent/etc/flannel/net-conf.json",
	}
}

// Kernel is what the adapter reads of this node's kernel. core/kernel has the
// real one.
type Kernel interface {
	// Host lists this node's interfaces.
	Host(ctx context.Context) (model.Host, error)
	// MainRoutes lists the unicast routes of the table main, both families,
	// sorted by prefix; of several to one prefix the one that the kernel
	// prefers comes first.
	MainRoutes(ctx context.Context) ([]adapter.NextHop, error)
}

// Options tells an Adapter where to look. Kernel is needed for Discover; the
// rest has defaults.
type Options struct {
	// Kernel is this node's.
	Kernel Kernel
	// Node is this Node's name, for messages.
	Node string
	// NodeAnnotations returns the annotations of this Node, and nil while they
	// are not known: before the first answer of an API server. The map is only
	// read. A nil function never knows.
	NodeAnnotations func() map[string]string
	// SubnetFile is flanneld's --subnet-file; "": DefaultSubnetFile.
	SubnetFile string
	// NetConfFiles are tried in order and need not exist; nil: DefaultNetConfFiles.
	NetConfFiles []string
	// ChainedCilium is what a Cilium that is chained behind Flannel leaves on a node
	// when it has run since boot, a file or a directory: it takes a WireGuard link
	// with an address for one of the node's own. "": nobody looks.
	ChainedCilium string
	// PollEvery is how often Watch looks at the files; 0: two seconds.
	PollEvery time.Duration
}

// Adapter implements adapter.Adapter for Flannel. The zero Adapter serves for
// Inject.
type Adapter struct{ o Options }

var _ adapter.Adapter = (*Adapter)(nil)

// New returns an Adapter. It does not look at anything yet.
func New(o Options) *Adapter {
	if o.SubnetFile == "" {
		o.SubnetFile = DefaultSubnetFile
	}
	if o.NetConfFiles == nil {
		o.NetConfFiles = DefaultNetConfFiles()
	}
	if o.PollEvery <= 0 {
		o.PollEvery = 2 * time.Second
	}
	return &Adapter{o: o}
}

// Name implements adapter.Adapter.
func (*Adapter) Name() string { return Name }
