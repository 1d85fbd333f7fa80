// Command flanneld runs Flannel on one node of the lab.
//
// All behaviour is Flannel's: leases, backends, devices, routes, rules and the
// subnet file come from its packages. Only the assembly is ours, because
// Flannel's own command links every cloud backend, one of which cannot be
// built from modules. Here are the backends that the lab uses, the Kubernetes
// subnet manager, and the same flags with the same defaults; the order of steps
// is Flannel's too, since later steps read what earlier ones wrote.
//
// As in Flannel, NODE_NAME names the node, and a flag --some-flag can be given
// as FLANNELD_SOME_FLAG.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
	"k8s.io/klog/v2"
)

func main() {
	opts, err := parseOptions(os.Args[1:], os.LookupEnv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "flanneld: %v\n", err)
		os.Exit(2)
	case opts.version:
		fmt.Println(release())
		return
	}

	// Both signals end the daemon and leave its device, routes and rules where
	// they are, as Flannel does: pods keep their network over a restart.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if err := run(ctx, opts); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "flanneld stops")
		klog.Flush()
		os.Exit(1)
	}
	klog.Flush()
}

// run joins the node to the network and keeps it joined until ctx ends. An
// error means that the node could not be joined; nothing is undone, so that a
// restart goes on from there.
func run(ctx context.Context, opts options) error {
	ctx, cancel := context.WithCancel(ctx)
	// The backend works in goroutines that write to the kernel: leave only when
	// they have stopped, or a successor would meet them.
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()

	klog.InfoS("starting", "flannel", release(), "options", fmt.Sprintf("%+v", opts))
	manager, err := kube.NewSubnetManager(ctx, opts.apiURL, opts.kubeconfig, opts.annotationPrefix, opts.netConfPath, opts.setNetworkUnavailable)
	if err != nil {
		return fmt.Errorf("read the network configuration and the Node: %w", err)
	}
	network, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("read the network configuration %s: %w", opts.netConfPath, err)
	}
	if !network.EnableNFTables {
		if err := checkBridgeFilter(network); err != nil {
			return err
		}
	}

	// An annotation on the Node outranks the flag: that is how an operator
	// corrects one node of a DaemonSet.
	if v4, v6 := manager.GetStoredPublicIP(ctx); v4 != "" || v6 != "" {
		opts.publicIP, opts.publicIPv6 = first(v4, opts.publicIP), first(v6, opts.publicIPv6)
	}
	external, err := externalInterface(opts, network)
	if err != nil {
		return err
	}

	builder, err := backend.NewManager(ctx, manager, external).GetBackend(network.BackendType)
	if err != nil {
		return fmt.Errorf("backend %q in %s: %w (this flanneld knows vxlan and host-gw)", network.BackendType, opts.netConfPath, err)
	}
	node, err := builder.RegisterNetwork(ctx, &background, network)
	if err != nil {
		return fmt.Errorf("register the node with backend %q: %w", network.BackendType, err)
	}

	if err := setupRules(ctx, opts, network, node); err != nil {
		return err
	}

	lease := node.Lease()
	if err := manager.HandleSubnetFile(opts.subnetFile, network, opts.ipMasq, lease.Subnet, lease.IPv6Subnet, node.MTU()); err != nil {
		// Flannel goes on here: the file serves the CNI plugin, and pods that
		// exist already do not need it.
		klog.ErrorS(err, "subnet file not written", "path", opts.subnetFile)
	} else {
		klog.InfoS("subnet file written", "path", opts.subnetFile, "subnet", lease.Subnet.String(), "mtu", node.MTU())
	}

	background.Go(func() { node.Run(ctx) })
	if err := manager.CompleteLease(ctx, lease, &background); err != nil {
		klog.ErrorS(err, "lease not completed: the Node may keep its condition NetworkUnavailable")
	}
	<-ctx.Done()
	return nil
}

// setupRules writes Flannel's packet filter rules, in iptables or nftables as
// the network configuration says, after removing what the other kind left.
func setupRules(ctx context.Context, opts options, network *subnet.Config, node backend.Network) error {
	if err := trafficManager(!network.EnableNFTables).CleanUp(ctx); err != nil {
		return fmt.Errorf("remove the rules of the packet filter that is not in use: %w", err)
	}
	rules := trafficManager(network.EnableNFTables)
	if err := rules.Init(ctx); err != nil {
		return fmt.Errorf("prepare the packet filter: %w", err)
	}
	if opts.ipMasq {
		// What the last run masqueraded is in the file that it left.
		previous, err := readSubnetFile(opts.subnetFile)
		if err != nil {
			klog.ErrorS(err, "previous subnet file ignored", "path", opts.subnetFile)
		}
		err = rules.SetupAndEnsureMasqRules(ctx,
			network.Network, previous.subnet, previous.network,
			network.IPv6Network, previous.subnet6, previous.network6,
			node.Lease(), opts.resyncSeconds, opts.masqNotRandom)
		if err != nil {
			return fmt.Errorf("write the masquerade rules: %w", err)
		}
	}
	if opts.forwardRules {
		rules.SetupAndEnsureForwardRules(ctx, network.Network, network.IPv6Network, opts.resyncSeconds)
	}
	return nil
}

func trafficManager(useNFTables bool) trafficmngr.TrafficManager {
	if useNFTables {
		return &nftables.NFTablesManager{}
	}
	return &iptables.IPTablesManager{}
}

// externalInterface picks the interface and address that other nodes reach
// this one by: the first of --iface, --iface-regex and --iface-can-reach that
// fits, or without any of them the one that holds --public-ip, or the one with
// the default route.
func externalInterface(opts options, network *subnet.Config) (*backend.ExternalInterface, error) {
	family, err := ipmatch.GetIPFamily(network.EnableIPv4, network.EnableIPv6)
	if err != nil {
		return nil, fmt.Errorf("network configuration %s enables neither IPv4 nor IPv6: %w", opts.netConfPath, err)
	}
	public := ipmatch.PublicIPOpts{PublicIP: opts.publicIP, PublicIPv6: opts.publicIPv6}

	if len(opts.ifaces) == 0 && len(opts.ifaceRegexes) == 0 && opts.ifaceCanReach == "" {
		found, err := ipmatch.LookupExtIface(first(opts.publicIP, opts.publicIPv6), "", "", family, public)
		if err != nil {
			return nil, fmt.Errorf("find the node's interface (name it with --iface): %w", err)
		}
		return found, nil
	}

	var reasons []error
	try := func(name, regex, reach string) *backend.ExternalInterface {
		found, err := ipmatch.LookupExtIface(name, regex, reach, family, public)
		if err != nil {
			reasons = append(reasons, err)
			return nil
		}
		return found
	}
	for _, name := range opts.ifaces {
		if found := try(name, "", ""); found != nil {
			return found, nil
		}
	}
	for _, regex := range opts.ifaceRegexes {
		if found := try("", regex, ""); found != nil {
			return found, nil
		}
	}
	if opts.ifaceCanReach != "" {
		if found := try("", "", opts.ifaceCanReach); found != nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("no interface fits --iface %q, --iface-regex %q, --iface-can-reach %q: %w",
		opts.ifaces, opts.ifaceRegexes, opts.ifaceCanReach, errors.Join(reasons...))
}

// checkBridgeFilter refuses iptables mode on a kernel where bridged packets
// skip iptables: a pod would then see its neighbour's answer instead of its
// Service's. Flannel makes the same check.
func checkBridgeFilter(network *subnet.Config) error {
	for path, wanted := range map[string]bool{
		"/proc/sys/net/bridge/bridge-nf-call-iptables":  network.EnableIPv4,
		"/proc/sys/net/bridge/bridge-nf-call-ip6tables": network.EnableIPv6,
	} {
		if !wanted {
			continue
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("iptables mode needs the kernel's bridge filter: %w (load br_netfilter or set EnableNFTables)", err)
		}
	}
	return nil
}

// release is the version of the Flannel packages that were linked.
func release() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == "github.com/flannel-io/flannel" {
				return module.Version
			}
		}
	}
	return "unknown"
}

// first returns the first of its arguments that is not empty.
func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
