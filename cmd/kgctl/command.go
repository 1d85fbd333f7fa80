package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const rootText = `Kgctl shows the mesh of a cluster, prints WireGuard configurations for nodes and
for parties outside the cluster, and lets such parties in. What it shows it plans
with the planner that the agents use.

Exit codes: 0 done, 1 an error, 2 a command line that means nothing, 3 (check)
something was found.`

// rootCommand makes all commands. Everything that they share is in p and o.
func rootCommand(p *program) *cobra.Command {
	o := &options{}
	root := group("kgctl", "Show the mesh of a cluster, and let others join it", rootText)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%v", err) })
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return o.check() }
	o.commonFlags(root.PersistentFlags())
	root.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(c, args[0])
		}
		return c.Help()
	}

	showconf := group("showconf", "Print the WireGuard configuration for a node or a Peer", `Prints WireGuard configurations: what a node's interface holds, or what a party
outside the cluster needs for its own.`)
	showconf.AddCommand(showconfNode(p, o), showconfPeer(p, o))
	peer := group("peer", "Let parties outside the cluster in: add, list, remove", `Peers are WireGuard parties outside the cluster, such as laptops, servers and
other clusters. They are resources, peers.kilo.squat.ai, that kubectl handles too.`)
	peer.AddCommand(peerAdd(p, o), peerList(p, o), peerRemove(p, o))
	clusters := group("cluster", "Join this cluster with another, and part them again", `Two clusters that are linked reach each other's pods, nodes and Services: each has
the other's locations as Peers.`)
	clusters.AddCommand(clusterLink(p, o), clusterUnlink(p, o))
	gateway := group("gateway", "Choose who serves a location: set", `Each location has one gateway that serves. It keeps the task until it fails or
until somebody asks for another one.`)
	gateway.AddCommand(gatewaySet(p, o))
	root.AddCommand(graph(p, o), showconf, peer, clusters, gateway, status(p, o), nodes(p, o), peers(p, o), explain(p, o), check(p, o), bugreport(p, o), connect(p, o), version(p))
	root.SetCompletionCommandGroupID("")
	return root
}

// group is a command that only has parts.
func group(use, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(c, args[0])
			}
			return usagef("%s what? A command is missing", c.CommandPath())
		},
	}
}

func unknown(c *cobra.Command, word string) error {
	text := fmt.Sprintf("%q is no command of %s", word, c.CommandPath())
	c.SuggestionsMinimumDistance = 2
	if close := c.SuggestionsFor(word); len(close) > 0 {
		text += "; did you mean " + strings.Join(close, " or ") + "?"
	}
	return usagef("%s", text)
}

// takes makes the check that a command gets exactly the arguments it names.
func takes(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) == len(names):
			return nil
		case len(names) == 0:
			return usagef("%s takes no argument, got %q", c.CommandPath(), args[0])
		case len(names) == 1:
			return usagef("%s takes one argument, %s, got %d", c.CommandPath(), names[0], len(args))
		}
		return usagef("%s takes %d arguments, %s, got %d", c.CommandPath(), len(names), strings.Join(names, " and "), len(args))
	}
}

// usageError is a command line that means nothing.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }
