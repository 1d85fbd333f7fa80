// kilolab drives the lab: a whole cluster network on one machine. See package
// lab for what it is made of, and `kilolab help` for the commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	var wrong usageError
	switch {
	case err == nil:
	case errors.As(err, &wrong):
		fmt.Fprintf(os.Stderr, "kilolab: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "kilolab: %v\n", err)
		os.Exit(1)
	}
}

// command is one of kilolab's.
type command struct {
	name  string
	args  string // as usage shows them
	about string
	run   func(context.Context, *call) error
	// internal commands are what the lab runs itself by.
	internal bool
}

// commands are listed in the order in which one needs them.
func commands() []command {
	return []command{
		{name: "demo", args: "[flags of up]", about: "up if it is not up, wait for the mesh, show it and the matrix", run: demo},
		{name: "up", args: "[flags]", about: "bring a lab up; see kilolab up -h", run: up},
		{name: "down", about: "end everything of a lab, interrupted ones too", run: down},
		{name: "list", about: "labs on this machine", run: list},
		{name: "status", about: "nodes, what runs on them, and the mesh as the agents see it", run: status},
		{name: "matrix", args: "[-o json]", about: "every pod pings every other; exit code 1 if a pair fails", run: matrix},
		{name: "exec", args: "PLACE [-- CMD…]", about: "run a command, or a shell, at a node, pod/NAME, router-LOCATION or internet", run: execAt},
		{name: "kubectl", args: "-- …", about: "kubectl as administrator", run: kubectl},
		{name: "kgctl", args: "-- …", about: "the kgctl beside this program, as administrator", run: kgctl},
		{name: "logs", args: "NODE [DAEMON]", about: "what a daemon has said: kg (default), flanneld, cilium, kube-proxy …", run: logs},
		{name: "restart", args: "NODE [DAEMON]", about: "stop by SIGTERM and start kg (default), flanneld, cilium or kube-proxy", run: restart},
		{name: "kill", args: "NODE [DAEMON]", about: "end kg (default) or another daemon by SIGKILL", run: kill},
		{name: "stop", args: "NODE", about: "stop kg by SIGTERM", run: stopAgent},
		{name: "start", args: "NODE", about: "start kg", run: startAgent},
		{name: "upgrade", args: "[--kg PATH]", about: "replace kg by one built from the source tree, or by PATH, and restart it everywhere", run: upgrade},
		{name: "poweroff", args: "NODE", about: "its links and processes are gone at once", run: powerOff},
		{name: "poweron", args: "NODE", about: "boot it again", run: powerOn},
		{name: "partition", args: "[--one-way] A B", about: "no packet from A to B, nor back: nodes or locations", run: partition},
		{name: "heal", args: "[A B]", about: "take that partition back, or all", run: heal},
		{name: "capture", args: "PLACE [-i DEV] [-- FILTER]", about: "tcpdump at a node, pod, router or the internet", run: capture},
		{name: "cilium", args: "NODE PATH", about: "ask a node's Cilium agent: config, endpoint, ip, healthz …", run: ciliumGet},
		{name: "netstate", args: "NODE", about: "rules, routes, links, filters and sysctls of a node, without counters", run: netState},
		{name: "spec", about: "print the default lab as JSON, for up --spec", run: spec},
		{name: "kubelets", run: kubelets, internal: true},
		{name: "container", run: container, internal: true},
		{name: "forward", run: forward, internal: true},
		{name: "echo", run: echo, internal: true},
		{name: "tunnel", run: tunnel, internal: true},
		{name: "clang", run: clang, internal: true},
		{name: "fetch", run: fetch, internal: true},
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage(os.Stdout)
		return nil
	}
	for _, c := range commands() {
		if c.name == args[0] {
			call := newCall(c)
			call.raw = args[1:]
			err := c.run(ctx, call)
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		}
	}
	return usageError(fmt.Sprintf("no command %q; see kilolab help", args[0]))
}

func usage(w io.Writer) {
	fmt.Fprint(w, "kilolab runs a whole cluster network on this machine, in namespaces.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		if !c.internal {
			fmt.Fprintf(t, "  %s %s\t%s\n", c.name, c.args, c.about)
		}
	}
	t.Flush()
	fmt.Fprint(w, "\nEvery command takes --name LAB (default: $KILO_LAB, else default). Labs are kept in\n$KILO_LAB_DIR (default: labs in $KILO_LAB_CACHE, else in ~/.cache/kilo-lab).\n")
}

type usageError string

func (e usageError) Error() string { return string(e) }

// call is one invocation of a command.
type call struct {
	command command
	flags   *flag.FlagSet
	name    string // of the lab
	raw     []string
	rest    []string // what follows "--"
}

func newCall(c command) *call {
	k := &call{command: c, flags: flag.NewFlagSet("kilolab "+c.name, flag.ContinueOnError)}
	name := os.Getenv("KILO_LAB")
	if name == "" {
		name = "default"
	}
	k.flags.StringVar(&k.name, "name", name, "name of the lab")
	k.flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "kilolab %s %s\n    %s\n", c.name, c.args, c.about)
		k.flags.PrintDefaults()
	}
	return k
}

// parse takes flags and words in any order, up to "--". It wants between least
// and most words and returns them.
func (k *call) parse(least, most int) ([]string, error) {
	args := k.raw
	for i, a := range args {
		if a == "--" {
			args, k.rest = args[:i], args[i+1:]
			break
		}
	}
	var words []string
	for {
		if err := k.flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, usageError(err.Error())
		}
		if k.flags.NArg() == 0 {
			break
		}
		words = append(words, k.flags.Arg(0))
		args = k.flags.Args()[1:]
	}
	if len(words) < least || len(words) > most {
		return nil, usageError(fmt.Sprintf("usage: kilolab %s %s", k.command.name, k.command.args))
	}
	return words, nil
}

// given are the flags on the command line other than --name.
func (k *call) given() []string {
	var flags []string
	k.flags.Visit(func(f *flag.Flag) {
		if f.Name != "name" {
			flags = append(flags, "--"+f.Name)
		}
	})
	return flags
}

// repeated is a flag that may be given several times.
type repeated []string

func (r *repeated) String() string { return strings.Join(*r, " ") }

func (r *repeated) Set(s string) error {
	*r = append(*r, s)
	return nil
}
