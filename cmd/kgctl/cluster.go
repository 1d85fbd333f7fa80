package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// loadTimeout bounds all reading from the API server together.
const loadTimeout = 30 * time.Second

// loadCluster reads the cluster that the kubeconfig names.
func loadCluster(ctx context.Context, o *options) (model.Snapshot, []model.Warning, error) {
	config, err := clusterConfig(o)
	if err != nil {
		return model.Snapshot{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	s, warnings, err := cluster.Load(ctx, config)
	if err != nil {
		return s, nil, fmt.Errorf("API server %s: %w", config.REST.Host, err)
	}
	return s, warnings, nil
}

// clusterConfig is the way to the cluster that the kubeconfig names.
func clusterConfig(o *options) (cluster.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return cluster.Config{}, noWay(rules, o, err)
	}
	subnets, err := o.wireGuardSubnets()
	if err != nil {
		return cluster.Config{}, err
	}
	return cluster.Config{REST: config, TopologyLabel: o.topologyLabel, WireGuardSubnets: subnets, Namespace: o.namespace, Version: release()}, nil
}

// noWay says why nobody knows which cluster is meant, and what to do.
func noWay(rules *clientcmd.ClientConfigLoadingRules, o *options, err error) error {
	if !clientcmd.IsEmptyConfig(err) {
		return fmt.Errorf("no way to the API server: %w; name a kubeconfig with --kubeconfig", err)
	}
	if o.kubeconfig != "" {
		return fmt.Errorf("no way to the API server: --kubeconfig=%s names no cluster", o.kubeconfig)
	}
	var missing []string
	for _, file := range rules.Precedence {
		if _, err := os.Stat(file); err != nil {
			missing = append(missing, file)
		}
	}
	if len(missing) == len(rules.Precedence) {
		return fmt.Errorf("which cluster? There is no kubeconfig: %s is not there (--kubeconfig or $KUBECONFIG name another)", strings.Join(missing, ", "))
	}
	return fmt.Errorf("which cluster? The kubeconfig %s names none; name another with --kubeconfig or $KUBECONFIG", strings.Join(rules.Precedence, ", "))
}

// completeNodes and completePeers offer names to the shell.
func (p *program) completeNodes(o *options) cobra.CompletionFunc {
	return p.complete(o, func(s model.Snapshot) (names []string) {
		for i := range s.Nodes {
			names = append(names, s.Nodes[i].Name)
		}
		return names
	})
}

func (p *program) completePeers(o *options) cobra.CompletionFunc {
	return p.complete(o, func(s model.Snapshot) (names []string) {
		for i := range s.Peers {
			names = append(names, s.Peers[i].Name)
		}
		return names
	})
}

func (p *program) complete(o *options, names func(model.Snapshot) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), 3*time.Second)
		defer cancel()
		s, _, err := p.load(ctx, o)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names(s), cobra.ShellCompDirectiveNoFileComp
	}
}

// checkMesh gives the nodes the granularity that is asked for, and tells what
// keeps kgctl from showing this mesh truly.
func checkMesh(s model.Snapshot, o *options) error {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if o.granularity != "auto" && n.Spoken {
			n.Granularity = model.Granularity(o.granularity)
		}
		for _, a := range n.WireGuardIPs {
			if !slices.ContainsFunc(s.WireGuardSubnets, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return fmt.Errorf("the WireGuard address %s of node %s is not in %s: give --subnet the value that the agents have", a, n.Name, s.WireGuardSubnets)
			}
		}
	}
	return nil
}

// resolver returns the addresses of a name.
type resolver func(ctx context.Context, name string) ([]netip.Addr, error)

// lookUp is the resolver of this machine.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// resolveEndpoints looks up the gateways' endpoints that are given as names,
// so that their addresses can be left out of what outsiders send through the
// tunnel. It leaves s as it is and returns one that knows them.
func (p *program) resolveEndpoints(ctx context.Context, s model.Snapshot) model.Snapshot {
	s.Nodes = slices.Clone(s.Nodes)
	for _, l := range plan.Locations(s) {
		g := l.Gateway
		if g == nil || g.Endpoint.Host == "" || g.Endpoint.Addr.IsValid() {
			continue
		}
		addresses, err := p.resolve(ctx, g.Endpoint.Host)
		if err != nil || len(addresses) == 0 {
			p.warn(fmt.Sprintf("the endpoint %s of node %s does not resolve here (%v): where its address is among AllowedIPs, take it out", g.Endpoint, g.Name, err))
			continue
		}
		g.Endpoint.Addr = addresses[0].Unmap()
	}
	return s
}
