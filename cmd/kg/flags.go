package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// options is everything a person can say to kg. A flag wins over its
// environment variable, which wins over the default.
type options struct {
	// How to reach the cluster, and who this node is.
	kubeconfig string
	master     string
	hostname   string
	namespace  string // POD_NAMESPACE, as the manifests give it; "": kube-system

	// The mesh.
	adapter       choice
	granularity   choice
	encapsulate   choice
	topologyLabel string
	subnets       prefixList
	serviceCIDRs  prefixList
	gateways      int
	resync        time.Duration

	// The WireGuard device.
	wireguard       choice
	iface           string
	port            port
	failoverPort    port
	mtu             mtu
	createInterface bool

	// Which addresses are this node's own.
	internalCIDRs     prefixList
	excludeInterfaces []string
	excludeCIDRs      prefixList
	publicCIDRs       prefixList
	preferPrivate     bool

	// What annotations say too; an annotation wins.
	location           string
	forceEndpoint      endpoint
	forceInternalIP    internalIPs
	leader             bool
	keepalive          keepalive
	allowedLocationIPs prefixList

	// Flannel's own files.
	flannelSubnetFile string
	flannelNetConf    string

	// The process.
	stateDir         string
	listen           address
	logLevel         choice
	cleanUp          bool
	cleanUpInterface bool
	iptablesForward  bool
	cniPath          string
	version          bool

	// kg uninstall.
	purge bool
}

// errHelp says that help was asked for and printed.
var errHelp = errors.New("help printed")

// usage opens what kg --help prints.
const usage = `kg joins the locations of a Kubernetes cluster with WireGuard, on top of the
CNI that the cluster already runs.

Usage:
  kg [flags]            run the agent on this node
  kg wireguard [flags]  carry the packets where the kernel has no WireGuard, apart from an agent
                        with --create-interface=false, which may then come and go
  kg uninstall [flags]  remove everything of the mesh from this node
  kg wg show            print the WireGuard devices as wg does, without secrets; so does kg
                        under the name wg
  kg pause              do nothing: what a pod does after kg uninstall
  kg version            print the version

Every flag can be given as an environment variable instead: --mesh-granularity
is KILO_MESH_GRANULARITY. A flag wins over its variable.

Flags:
`

// parse reads the command line and the environment. The error is a sentence
// that names the flag or variable and its value.
func parse(args []string, getenv func(string) string, out io.Writer) (*options, error) {
	o := &options{
		adapter:     choice{value: "auto", allowed: []string{"auto", "flannel", "cilium"}},
		granularity: choice{value: string(model.PerLocation), allowed: []string{string(model.PerLocation), string(model.Cross), string(model.Full)}},
		encapsulate: choice{value: "always", allowed: []string{"always", "crosssubnet", "never"}},
		wireguard:   choice{value: "auto", allowed: []string{"auto", "kernel", "userspace"}},
		logLevel:    choice{value: "info", allowed: []string{"all", "debug", "info", "warn", "error", "none"}},
		subnets:     prefixList{prefixes: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}, onePerFamily: true},
		port:        51820,
	}
	fs := o.flags()
	fs.Usage = func() { fmt.Fprint(out, usage, fs.FlagUsagesWrapped(100)) }
	fs.SetOutput(io.Discard)
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil, errHelp
	case err != nil:
		return nil, err
	}
	if rest := fs.Args(); len(rest) > 0 {
		return nil, fmt.Errorf("unexpected argument %q: kg takes flags, \"kg wireguard\", \"kg uninstall\" or \"kg version\"", rest[0])
	}
	if err := fromEnvironment(fs, getenv); err != nil {
		return nil, err
	}
	o.namespace = getenv("POD_NAMESPACE")
	return o, o.check()
}

func (o *options) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("kg", pflag.ContinueOnError)
	fs.SortFlags = false

	fs.StringVar(&o.hostname, "hostname", "", "name of this node's Node object (also NODE_NAME); default: the host's name")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "path to a kubeconfig; default: the pod's own service account")
	fs.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")

	fs.Var(&o.adapter, "adapter", "host CNI that the mesh runs on: auto, which finds it out, flannel or cilium")
	fs.Var(&o.adapter, "compatibility", "Kilo's name for --adapter")
	fs.Var(&o.granularity, "mesh-granularity", "between whom tunnels are made: location, one gateway of each location with one of every other; cross, every node with the nodes of other locations; full, every node with every node. A pair meets directly when both say so and reach each other, otherwise by their gateways")
	fs.Var(&o.encapsulate, "encapsulate", "when traffic to the gateway is encapsulated inside a location: always, crosssubnet or never; on Flannel its own backend decides")
	fs.StringVar(&o.topologyLabel, "topology-label", "topology.kubernetes.io/region", "label of a Node that names its location, where neither annotation nor label kilo.squat.ai/location does")
	fs.Var(&o.subnets, "subnet", "prefix that WireGuard addresses are taken from; at most one per family, the same on all nodes")
	fs.Var(&o.serviceCIDRs, "service-cidr", "ranges of Service addresses, which are never taken for endpoints or by Peers; may be given several times. Default: what the API server tells (ServiceCIDR, from Kubernetes 1.33 on)")
	fs.IntVar(&o.gateways, "gateways", 2, "how many nodes of each location are prepared to be its gateway; one serves")
	fs.DurationVar(&o.resync, "resync-period", 30*time.Second, "how often everything is compared again without an event")

	fs.Var(&o.wireguard, "wireguard", "WireGuard device: auto takes the kernel's where there is one, else the built-in userspace device; kernel or userspace force one")
	fs.StringVar(&o.iface, "interface", "kilo0", "name of the WireGuard interface")
	fs.Var(&o.port, "port", "UDP port that WireGuard listens on; gateways that stand by are reached at the next ones, as many as --gateways says")
	fs.Var(&o.failoverPort, "failover-port", "UDP port on which the agents of one location, and those of gateways through the tunnels, tell each other who serves; 51829, say. Without it (the default for now) nobody stands by, and a gateway is replaced when its Node has turned NotReady")
	fs.Var(&o.mtu, "mtu", "MTU of the WireGuard interface in bytes, or auto: that of the uplink less 80")
	fs.BoolVar(&o.createInterface, "create-interface", true, "create the WireGuard interface; false: wait for somebody else to, such as \"kg wireguard\"")

	fs.Var(&o.internalCIDRs, "internal-cidr", "take this node's internal address from these prefixes; default: the Node's InternalIP")
	fs.StringSliceVar(&o.excludeInterfaces, "exclude-interfaces", nil, "interfaces whose addresses are never this node's endpoint or internal address; * at the end of a name stands for anything. Those of CNIs, containers and tunnels always are excluded")
	fs.Var(&o.excludeCIDRs, "exclude-cidrs", "prefixes that this node's endpoint and internal address are never taken from")
	fs.Var(&o.publicCIDRs, "public-cidrs", "prefixes to be taken for public although they are reserved or private, for networks that use them so")
	fs.BoolVar(&o.preferPrivate, "prioritise-private-addresses", false, "prefer a private address as this node's endpoint and internal address, where locations reach each other by those")

	fs.StringVar(&o.location, "location", "", "location of this node; annotation kilo.squat.ai/location wins")
	fs.Var(&o.forceEndpoint, "force-endpoint", "host:port at which other locations reach this node; annotation kilo.squat.ai/force-endpoint wins")
	fs.Var(&o.forceInternalIP, "force-internal-ip", "internal address of this node with the length of its subnet, or \"-\" for none; annotation kilo.squat.ai/force-internal-ip wins")
	fs.BoolVar(&o.leader, "leader", false, "prefer this node as its location's gateway, as annotation kilo.squat.ai/leader does")
	fs.Var(&o.keepalive, "persistent-keepalive", "seconds between this node's keepalives; annotation kilo.squat.ai/persistent-keepalive wins")
	fs.Var(&o.allowedLocationIPs, "allowed-location-ips", "further prefixes reached through this node's location; annotation kilo.squat.ai/allowed-location-ips wins")

	fs.StringVar(&o.flannelSubnetFile, "flannel-subnet-file", "/run/flannel/subnet.env", "file in which flanneld records this node's subnet")
	fs.StringVar(&o.flannelNetConf, "flannel-net-conf", "", "flanneld's network configuration; default: where Flannel's own manifest or k3s have it")

	fs.StringVar(&o.stateDir, "state-dir", "/var/lib/kilo", "directory of the key and of the last good snapshot")
	fs.Var(&o.listen, "listen", "address:port for metrics, health and status; default: port 1107 of this node's internal address and of loopback (Kilo: of every address)")
	fs.Var(&o.logLevel, "log-level", "what is logged: all, debug, info, warn, error or none")
	fs.BoolVar(&o.cleanUp, "clean-up", false, "remove routes, rules, filter and annotations when the agent ends. Kilo's default is true; here traffic goes on while an agent is restarted, and \"kg uninstall\" removes")
	fs.BoolVar(&o.cleanUpInterface, "clean-up-interface", false, "with --clean-up, remove the WireGuard interface too")
	fs.BoolVar(&o.iptablesForward, "iptables-forward-rules", false, "put a commented accept of the mesh's traffic into FORWARD chains of others whose policy is drop (nftables, iptables-nft, iptables-legacy), keep it there, and take it out with the flag, at --clean-up and at \"kg uninstall\". Default: such chains are reported and left alone")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
	fs.BoolVar(&o.purge, "purge", false, "kg uninstall: remove the key and the rest of the state directory too; a new key is another party to everyone")

	// An add-on manages no CNI. Manifests made for Kilo may say so.
	never := func(name, why string) {
		fs.Var(&falseOnly{why: why}, name, "accepts only false: "+why)
		fs.Lookup(name).NoOptDefVal = "true" // --cni means --cni=true, and is told why not
	}
	never("cni", "an add-on leaves the CNI's configuration to the CNI")
	never("local", "traffic inside a location is the host CNI's")
	fs.StringVar(&o.cniPath, "cni-path", "", "ignored: an add-on writes no CNI configuration")
	return fs
}

// variable is a flag's environment twin.
func variable(flag string) string {
	return "KILO_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func fromEnvironment(fs *pflag.FlagSet, getenv func(string) string) error {
	// A name given under an alias is given.
	given := func(f *pflag.Flag) bool {
		return f.Changed || f.Name == "adapter" && fs.Changed("compatibility") || f.Name == "compatibility" && fs.Changed("adapter")
	}
	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		if failed != nil || given(f) {
			return
		}
		names := []string{variable(f.Name)}
		if f.Name == "hostname" {
			names = append(names, "NODE_NAME")
		}
		for _, name := range names {
			if v := getenv(name); v != "" {
				if err := fs.Set(f.Name, v); err != nil {
					failed = fmt.Errorf("environment variable %s: %w", name, err)
				}
				return
			}
		}
	})
	return failed
}

// check judges what one flag alone cannot tell.
func (o *options) check() error {
	if o.hostname == "" {
		name, err := os.Hostname()
		if err != nil || name == "" {
			return fmt.Errorf("the host has no name (%w): name the Node with --hostname", err)
		}
		o.hostname = strings.ToLower(name)
	}
	if err := validInterface(o.iface); err != nil {
		return fmt.Errorf("--interface=%s: %w", o.iface, err)
	}
	if last := state.TunnelLink(o.iface, state.TunnelSlots-1); validInterface(last) != nil {
		return fmt.Errorf("--interface=%s is too long: %s, the name of a link for another gateway, needs to fit into 15 bytes too", o.iface, last)
	}
	if o.gateways < 1 || o.gateways > state.TunnelSlots {
		return fmt.Errorf("--gateways=%d: want 1 to %d", o.gateways, state.TunnelSlots)
	}
	if o.resync < time.Second {
		return fmt.Errorf("--resync-period=%s: want a second or more", o.resync)
	}
	if o.topologyLabel == "" {
		return errors.New("--topology-label is empty: want the name of a label, such as topology.kubernetes.io/region")
	}
	if o.cleanUpInterface && !o.cleanUp {
		return errors.New("--clean-up-interface needs --clean-up: by itself it would leave routes to an interface that is gone")
	}
	if len(o.subnets.prefixes) == 0 {
		return errors.New("--subnet is empty: want a prefix for WireGuard addresses, such as 10.4.0.0/16")
	}
	if last := int(o.port) + o.gateways - 1; last > 65535 {
		return fmt.Errorf("--port=%d and --gateways=%d: gateways that stand by need the ports up to %d; want a port of at most %d", o.port, o.gateways, last, 65536-o.gateways)
	}
	if p := int(o.failoverPort) - int(o.port); o.failoverPort > 0 && p >= 0 && p < o.gateways {
		return fmt.Errorf("--failover-port=%d is one of WireGuard's, %d to %d (--port, --gateways): want another one", o.failoverPort, o.port, int(o.port)+o.gateways-1)
	}
	for _, s := range o.subnets.prefixes {
		if s.Bits() == 0 || !s.Addr().IsGlobalUnicast() {
			return fmt.Errorf("--subnet=%s: WireGuard addresses cannot be taken from it; want a prefix of a private network, such as 10.4.0.0/16", s)
		}
		for _, c := range o.serviceCIDRs.prefixes {
			if s.Overlaps(c) {
				return fmt.Errorf("--subnet=%s and --service-cidr=%s overlap: WireGuard addresses need a prefix of their own", s, c)
			}
		}
	}
	return nil
}

// validInterface holds the kernel's rules for names, and keeps the name from
// being a pattern.
func validInterface(name string) error {
	switch {
	case name == "" || len(name) > 15:
		return errors.New("want 1 to 15 characters")
	case name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n*"):
		return errors.New("want a name without spaces, '/', ':' and '*'")
	}
	return nil
}
