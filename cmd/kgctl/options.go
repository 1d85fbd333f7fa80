package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kilo-overlay/kilo/core/model"
)

// options is everything that a person can say to kgctl.
type options struct {
	backend       string
	granularity   string
	kubeconfig    string
	port          uint16
	subnets       []string
	topologyLabel string
	help          bool

	// For showconf.
	asPeer     bool
	output     string
	allowedIPs []string
	extra      []netip.Prefix // allowedIPs, parsed

	args []string // what follows the command's name
}

// usageError is a command line that means nothing.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// command is one thing that kgctl does, or, without run, a group of them.
type command struct {
	path, args string // "kgctl showconf peer", "NAME"
	short      string
	text       string // explanation and examples, for help
	flags      func(*pflag.FlagSet, *options)
	run        func(context.Context, *program, *options) error
}

// commands are all commands, those before their parts.
func commands() []command {
	showconf := func(f *pflag.FlagSet, o *options) { o.showconfFlags(f) }
	return []command{
		{path: "kgctl", short: "Show the mesh of a cluster", text: rootText},
		{path: "kgctl graph", short: "Print the mesh as a graph in Graphviz' DOT", text: graphText, run: graph},
		{path: "kgctl showconf", short: "Print the WireGuard configuration for a node or a Peer", text: showconfText, flags: showconf},
		{path: "kgctl showconf node", args: "NAME", short: "Print the WireGuard configuration of a node", text: showconfNodeText, flags: showconf, run: showconfNode},
		{path: "kgctl showconf peer", args: "NAME", short: "Print the WireGuard configuration that a Peer needs", text: showconfPeerText, flags: showconf, run: showconfPeer},
		{path: "kgctl version", short: "Print the version", text: versionText, run: version},
	}
}

func (o *options) commonFlags(f *pflag.FlagSet) {
	f.StringVar(&o.backend, "backend", "kubernetes", "where the mesh is described; possible value: kubernetes")
	f.StringVar(&o.granularity, "mesh-granularity", "auto", "granularity of the mesh: auto (what each node says), or location, cross or full, to see what the mesh would be with it")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "path to a kubeconfig (default $KUBECONFIG, then ~/.kube/config, then the pod's service account)")
	f.Uint16Var(&o.port, "port", 51820, "UDP port that the nodes' WireGuard listens on")
	f.StringSliceVar(&o.subnets, "subnet", []string{"10.4.0.0/16"}, "the agents' --subnet, which WireGuard addresses are taken from; at most one per family")
	f.StringVar(&o.topologyLabel, "topology-label", "topology.kubernetes.io/region", "label of Nodes that tells the location of those that no agent and no annotation tells of")
	f.BoolVarP(&o.help, "help", "h", false, "show help")
}

func (o *options) showconfFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.asPeer, "as-peer", false, "print the party as a peer, to configure it on another WireGuard interface or in another cluster")
	f.StringVarP(&o.output, "output", "o", "wireguard", "with --as-peer: wireguard, yaml or json")
	f.StringSliceVar(&o.allowedIPs, "allowed-ips", nil, "with --as-peer: further prefixes for the peer's allowed IPs")
}

// parse reads the command line. Flags may stand anywhere. The command comes
// back with an error as well, as far as it is known.
func parse(args []string) (*options, *command, error) {
	o := &options{}
	flags := pflag.NewFlagSet("kgctl", pflag.ContinueOnError)
	flags.Usage = func() {}
	o.commonFlags(flags)
	o.showconfFlags(flags)
	parseError := flags.Parse(args)
	words := flags.Args()
	if len(words) > 0 && words[0] == "help" {
		o.help, words = true, words[1:]
	}
	c, rest := find(words)
	o.args = rest
	switch {
	case parseError != nil:
		return o, c, usagef("%v", parseError)
	case o.help:
		return o, c, nil
	case c.run == nil && len(rest) > 0:
		return o, c, usagef("%q is no command of %s", rest[0], c.path)
	case c.run == nil && c.path != "kgctl":
		return o, c, usagef("%s what? A command is missing", c.path)
	case c.args == "" && len(rest) > 0:
		return o, c, usagef("%s takes no argument, got %q", c.path, rest[0])
	case c.args != "" && len(rest) != 1:
		return o, c, usagef("%s takes one argument, %s, got %d", c.path, c.args, len(rest))
	}
	if c.flags == nil {
		for _, name := range []string{"as-peer", "output", "allowed-ips"} {
			if flags.Changed(name) {
				return o, c, usagef("--%s is a flag of kgctl showconf", name)
			}
		}
	}
	return o, c, o.check(flags)
}

// find returns the command that words begin with, and the words that follow.
func find(words []string) (*command, []string) {
	all := commands()
	best, rest := &all[0], words
	for i := range all {
		names := strings.Fields(all[i].path)[1:]
		if len(names) <= len(words) && slices.Equal(names, words[:len(names)]) {
			best, rest = &all[i], words[len(names):]
		}
	}
	return best, rest
}

// check judges the values of flags.
func (o *options) check(flags *pflag.FlagSet) error {
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
	if !slices.Contains([]string{"wireguard", "yaml", "json"}, o.output) {
		return usagef("--output=%s: possible values are wireguard, yaml and json", o.output)
	}
	if !o.asPeer {
		for _, name := range []string{"output", "allowed-ips"} {
			if flags.Changed(name) {
				return usagef("--%s needs --as-peer", name)
			}
		}
	}
	extra, err := parsePrefixes("allowed-ips", o.allowedIPs)
	if err != nil {
		return err
	}
	o.extra = extra
	_, err = o.wireGuardSubnets()
	return err
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
