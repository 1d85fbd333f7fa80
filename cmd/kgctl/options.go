package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

// options is what a person can say to every command.
type options struct {
	backend       string
	granularity   string
	kubeconfig    string
	context       string
	namespace     string
	port          uint16
	subnets       []string
	topologyLabel string
	direct        bool
	agentPort     uint16
}

func (o *options) commonFlags(f *pflag.FlagSet) {
	f.StringVar(&o.backend, "backend", "kubernetes", "where the mesh is described; possible value: kubernetes")
	f.StringVar(&o.granularity, "mesh-granularity", "auto", "granularity of the mesh: auto (what each node says), or location, cross or full, to see what the mesh would be with it")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "path to a kubeconfig (default $KUBECONFIG, then ~/.kube/config, then the pod's service account)")
	f.StringVar(&o.context, "context", "", "the kubeconfig's context to use")
	f.StringVar(&o.namespace, "namespace", cluster.DefaultNamespace, "where the agents run, and the Secrets with Peers' preshared keys are")
	f.Uint16Var(&o.port, "port", 51820, "UDP port that the nodes' WireGuard listens on")
	f.StringSliceVar(&o.subnets, "subnet", []string{"10.4.0.0/16"}, "the agents' --subnet, which WireGuard addresses are taken from; at most one per family")
	f.StringVar(&o.topologyLabel, "topology-label", "topology.kubernetes.io/region", "label of Nodes that tells the location of those that no agent and no annotation tells of")
}

// liveFlags are those of commands that ask agents.
func (o *options) liveFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.direct, "direct", false, "ask the agents at their nodes' addresses instead of through the API server")
	f.Uint16Var(&o.agentPort, "agent-port", 1107, "TCP port at which agents tell their status")
}

// check judges the values of flags.
func (o *options) check() error {
	if o.backend != "kubernetes" {
		return usagef("--backend=%s: the only possible value is kubernetes", o.backend)
	}
	switch model.Granularity(o.granularity) {
	case "auto", model.PerLocation, model.Full, model.Cross:
	default:
		return usagef("--mesh-granularity=%s: possible values are auto, location, full and cross", o.granularity)
	}
	if o.port == 0 {
		return usagef("--port=0: want 1 to 65535")
	}
	_, err := o.wireGuardSubnets()
	return err
}

// choice adds a flag with few possible values. The check is the caller's to run.
func choice(c *cobra.Command, value *string, name, short, preset, about string, values ...string) (check func() error) {
	c.Flags().StringVarP(value, name, short, preset, about+": "+strings.Join(values, ", "))
	// The flag is there: it cannot fail.
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	return func() error {
		if !slices.Contains(values, *value) {
			return usagef("--%s=%s: possible values are %s", name, *value, strings.Join(values, ", "))
		}
		return nil
	}
}

// wireGuardSubnets is --subnet, parsed.
func (o *options) wireGuardSubnets() ([]netip.Prefix, error) {
	subnets, err := parsePrefixes("subnet", o.subnets)
	if err == nil && (len(subnets) == 0 || len(subnets) > 2 || len(subnets) == 2 && subnets[0].Addr().Is4() == subnets[1].Addr().Is4()) {
		err = usagef("--subnet=%s: want one prefix, or one of each family", strings.Join(o.subnets, ","))
	}
	return subnets, err
}

// parsePrefixes reads the values of a flag; an address alone means itself.
func parsePrefixes(flag string, texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, failed := netip.ParseAddr(text)
			if failed != nil || a.Zone() != "" {
				return nil, usagef("--%s: %q is not a prefix such as 10.96.0.0/12", flag, text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
