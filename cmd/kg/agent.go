package main

import (
	"context"
	"crypto/ecdh"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kilo-overlay/kilo/adapters/cilium"
	"github.com/kilo-overlay/kilo/adapters/detect"
	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/agent"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/identity"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/self"
)

// lockPatience is how long a new agent waits for the one before it to end.
const lockPatience = time.Minute

// runAgent is the agent's whole story; there is no other place where its parts
// are put together.
func runAgent(ctx context.Context, o *options, _, logTo io.Writer) error {
	log := newLog(logTo, o.logLevel.value)
	klog.SetSlogLogger(newLog(logTo, clientLevel(o.logLevel.value))) // what the API client has to say
	o.warnOfIgnored(log)

	// One agent a node: two would undo each other's work.
	unlock, err := lock(ctx, o.stateDir, lockFile, lockPatience)
	if err != nil {
		return err
	}
	defer unlock()

	// The node's key is made once and is what the others know it by. A file
	// that is there and no key stops us here, untouched.
	private, created, err := identity.Load(filepath.Join(o.stateDir, keyFile))
	if err != nil {
		return err
	}
	if created {
		log.Info("a new key was made for this node", "publicKey", model.Key(private.PublicKey()))
	}

	// The kernel's side: the WireGuard link, and what is ours beside it.
	link := newLink(o, model.Key(private.PublicKey()), log)
	defer link.close()
	k, err := kernel.New(kernel.Options{Interface: o.iface, PrivateKey: private, Ensure: link.missing, Log: log})
	if err != nil {
		return err
	}
	defer k.Close()

	// The cluster's side. Nothing is asked yet: an API server that is away
	// keeps nobody from starting.
	api, err := restConfig(o, rest.InClusterConfig, log)
	if err != nil {
		return err
	}
	writes := countWrites(api)
	kubernetes := cluster.New(cluster.Config{
		REST: api, Node: o.hostname, TopologyLabel: o.topologyLabel,
		Namespace: o.namespace, WireGuardSubnets: o.subnets.prefixes, ServicePrefixes: o.serviceCIDRs.prefixes,
		Dir: o.stateDir, Version: version(), Log: log,
	})

	// The host CNI's side. Which one it is may show only later.
	nodes, err := dynamic.NewForConfig(api)
	if err != nil {
		return err
	}
	cni := detect.Options{
		Flannel: flannel.Options{
			Kernel: k, Node: o.hostname, NodeAnnotations: kubernetes.Annotations,
			SubnetFile: o.flannelSubnetFile, NetConfFiles: o.netConfFiles(),
		},
		Cilium: cilium.Options{
			Node: o.hostname, Nodes: nodes, Known: func() []netip.Prefix { return published(kubernetes, o.hostname) },
			Interface: o.iface, Port: uint16(o.port), WireGuardSubnets: o.subnets.prefixes,
			Encapsulation: cilium.Encapsulation(o.encapsulate.value),
		},
	}

	// The agent joins the three until it is told to end.
	return agent.New(agent.Config{
		Node: o.hostname, Interface: o.iface, Port: uint16(o.port), Key: model.Key(private.PublicKey()),
		MTU: int(o.mtu), Gateways: o.gateways, Settings: o.settings(),
		Cluster: kubernetes, Kernel: k, Device: link.first,
		Adapter: func(ctx context.Context) (adapter.Adapter, error) { return detect.Adapter(ctx, o.adapter.value, cni) },
		Secret:  secretWith(private), FailoverPort: uint16(o.failoverPort),
		Forward: kernel.NewForward(log), AcceptForwarded: o.iptablesForward, Dir: o.stateDir,
		APIWrites: writes, ResyncPeriod: o.resync, Listen: netip.AddrPort(o.listen),
		CleanUp: o.cleanUp, CleanUpInterface: o.cleanUpInterface,
		Version: version(), Log: log,
	}).Run(ctx)
}

// published are the pod prefixes that the Node last said it has.
func published(c *cluster.Cluster, name string) []netip.Prefix {
	s, _, _ := c.Snapshot()
	if n := s.Node(name); n != nil && n.Spoken {
		return n.PodPrefixes
	}
	return nil
}

// settings are the flags that concern the node itself.
func (o *options) settings() self.Settings {
	return self.Settings{
		Location: o.location, ForceEndpoint: o.forceEndpoint.Endpoint,
		ForceInternalIPs: o.forceInternalIP.addresses, NoInternalIP: o.forceInternalIP.none,
		Leader: o.leader, Keepalive: time.Duration(o.keepalive), AllowedLocationIPs: o.allowedLocationIPs.prefixes,
		Port: uint16(o.port), Granularity: model.Granularity(o.granularity.value),
		InternalCIDRs: o.internalCIDRs.prefixes, PublicCIDRs: o.publicCIDRs.prefixes,
		ExcludeInterfaces: o.excludeInterfaces, ExcludeCIDRs: o.excludeCIDRs.prefixes,
		PreferPrivate: o.preferPrivate,
	}
}

// netConfFiles is nil, that is Flannel's usual places, unless somebody named one.
func (o *options) netConfFiles() []string {
	if o.flannelNetConf == "" {
		return nil
	}
	return []string{o.flannelNetConf}
}

func (o *options) warnOfIgnored(log *slog.Logger) {
	if o.cniPath != "" {
		log.Warn("--cni-path is ignored: an add-on writes no CNI configuration", "value", o.cniPath)
	}
	if o.encapsulate.value != "always" {
		log.Info("--encapsulate has an effect on Cilium alone; Flannel's own backend decides", "value", o.encapsulate.value)
	}
}

// newLog writes what level allows, in Kilo's words for levels.
func newLog(to io.Writer, level string) *slog.Logger {
	at := slog.LevelInfo
	switch level {
	case "all", "debug":
		at = slog.LevelDebug
	case "warn":
		at = slog.LevelWarn
	case "error":
		at = slog.LevelError
	case "none":
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: at}))
}

// clientLevel keeps the API client's own details for those who ask for all.
func clientLevel(level string) string {
	if level == "debug" {
		return "info"
	}
	return level
}

// secretWith returns what this node shares with the owner of a public key (X25519,
// RFC 7748).
func secretWith(private wgtypes.Key) func(model.Key) (failover.Secret, error) {
	return func(k model.Key) (failover.Secret, error) {
		mine, err := ecdh.X25519().NewPrivateKey(private[:])
		if err != nil {
			return failover.Secret{}, err
		}
		theirs, err := ecdh.X25519().NewPublicKey(k[:])
		if err != nil {
			return failover.Secret{}, err
		}
		shared, err := mine.ECDH(theirs)
		return failover.Secret(shared), err
	}
}

// keyFile holds the node's private key, in the state directory.
const keyFile = "key"
