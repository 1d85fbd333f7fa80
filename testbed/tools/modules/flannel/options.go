package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"k8s.io/klog/v2"
)

// options are the flags, with Flannel's names and defaults.
type options struct {
	version bool

	apiURL                string
	kubeconfig            string
	annotationPrefix      string
	netConfPath           string
	subnetFile            string
	setNetworkUnavailable bool

	ifaces        []string
	ifaceRegexes  []string
	ifaceCanReach string
	publicIP      string
	publicIPv6    string

	ipMasq        bool
	masqNotRandom bool
	forwardRules  bool
	resyncSeconds int
}

// parseOptions reads the arguments, then the environment for flags that were
// not given. It returns flag.ErrHelp after printing the usage.
func parseOptions(args []string, lookupEnv func(string) (string, bool)) (options, error) {
	var o options
	var kubeManager bool
	flags := flag.NewFlagSet("flanneld", flag.ContinueOnError)
	flags.BoolVar(&o.version, "version", false, "print the version of Flannel's packages and exit")
	flags.BoolVar(&kubeManager, "kube-subnet-mgr", false, "take the subnet from the Node object; must be set, the etcd manager is not built in")
	flags.StringVar(&o.apiURL, "kube-api-url", "", "API server, if not from the kubeconfig")
	flags.StringVar(&o.kubeconfig, "kubeconfig-file", "", "kubeconfig; empty: the service account of the pod we run in")
	flags.StringVar(&o.annotationPrefix, "kube-annotation-prefix", "flannel.alpha.coreos.com", "prefix of the annotations written on the Node")
	flags.StringVar(&o.netConfPath, "net-config-path", "/etc/kube-flannel/net-conf.json", "network configuration")
	flags.StringVar(&o.subnetFile, "subnet-file", "/run/flannel/subnet.env", "file that tells the CNI plugin the subnet and MTU")
	flags.BoolVar(&o.setNetworkUnavailable, "set-node-network-unavailable", true, "set the Node condition NetworkUnavailable to false when ready")
	flags.Func("iface", "interface (name or address) towards other nodes; repeat for alternatives", appendTo(&o.ifaces))
	flags.Func("iface-regex", "regular expression for that interface, tried after --iface; repeat for alternatives", appendTo(&o.ifaceRegexes))
	flags.StringVar(&o.ifaceCanReach, "iface-can-reach", "", "take the interface that routes to this address, tried last")
	flags.StringVar(&o.publicIP, "public-ip", "", "IPv4 address by which other nodes reach this one")
	flags.StringVar(&o.publicIPv6, "public-ipv6", "", "IPv6 address by which other nodes reach this one")
	flags.BoolVar(&o.ipMasq, "ip-masq", false, "masquerade what leaves the overlay")
	flags.BoolVar(&o.masqNotRandom, "ip-masq-fully-random-disable", false, "masquerade without fully random ports")
	flags.BoolVar(&o.forwardRules, "iptables-forward-rules", true, "accept forwarded packets of the overlay")
	flags.IntVar(&o.resyncSeconds, "iptables-resync", 5, "seconds between two checks of our iptables rules")
	addLogFlags(flags)

	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if err := fromEnvironment(flags, lookupEnv); err != nil {
		return options{}, err
	}
	switch {
	case o.version:
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case !kubeManager:
		return options{}, errors.New("--kube-subnet-mgr is missing: this flanneld takes subnets from Node objects only")
	case o.resyncSeconds <= 0:
		return options{}, fmt.Errorf("--iptables-resync %d: must be at least 1 second", o.resyncSeconds)
	}
	return o, nil
}

// addLogFlags adds klog's -v and -vmodule, and sends all of its log to
// standard error rather than to files.
func addLogFlags(flags *flag.FlagSet) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	for _, name := range []string{"v", "vmodule"} {
		f := all.Lookup(name)
		flags.Var(f.Value, f.Name, f.Usage)
	}
}

// fromEnvironment sets every flag that was not given from FLANNELD_<NAME>.
func fromEnvironment(flags *flag.FlagSet, lookupEnv func(string) (string, bool)) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var problems []error
	flags.VisitAll(func(f *flag.Flag) {
		name := "FLANNELD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := lookupEnv(name)
		if !ok || value == "" || given[f.Name] {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			problems = append(problems, fmt.Errorf("environment %s=%q: %w", name, value, err))
		}
	})
	return errors.Join(problems...)
}

func appendTo(list *[]string) func(string) error {
	return func(value string) error {
		*list = append(*list, value)
		return nil
	}
}
