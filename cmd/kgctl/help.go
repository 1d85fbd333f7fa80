package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

const (
	rootText = `Kgctl shows the mesh of a cluster: as a graph, and as WireGuard configurations
for nodes and for parties outside the cluster. It reads Nodes and Peers and
changes nothing.

Exit codes: 0 done, 1 an error, 2 a command line that means nothing.
`
	graphText = `Prints the mesh as a graph: a box for each location, "(leader)" at its gateway,
the nodes' pod prefixes, addresses and endpoints, and what is connected with
what. Solid edges between leaders are tunnels; dotted ones are tunnels that
cannot come up, because neither side has an endpoint. Dashed edges lead to Peers.

Example:
  kgctl graph | dot -Tsvg > mesh.svg
`
	showconfText = `Prints WireGuard configurations: what a node's interface holds, or what a party
outside the cluster needs for its own.

Examples:
  kgctl showconf node e1
  kgctl showconf peer laptop
`
	showconfNodeText = `Prints what the WireGuard interface of a node holds, without the private key. Only
a location's gateway has peers.

With --as-peer it prints the node's location as a peer for another WireGuard
interface, or with -o yaml as a Peer resource for another cluster: the
location's pod prefixes, node addresses, WireGuard address and
allowed-location-ips, the endpoint's own address left out.

Preshared keys are part of what is printed.

Examples:
  kgctl showconf node e1
  kgctl showconf node e1 --as-peer -o yaml --allowed-ips 10.96.0.0/12 | \
    kubectl --context other apply -f -
`
	showconfPeerText = `Prints what the party behind a Peer needs for its own WireGuard interface: one
section for each location. Its private key and address it has itself. A location
that it cannot speak with is left out, which a comment and a warning say.
The addresses of endpoints are in no AllowedIPs, so that wg-quick does not send
the tunnel into itself.

With --as-peer it prints the Peer itself, as a peer for another interface.

Preshared keys are part of what is printed.

Examples:
  kgctl showconf peer laptop >> /etc/wireguard/kilo.conf
  kgctl showconf peer laptop --as-peer -o yaml
`
	versionText = `Prints kgctl's version, the Go release that built it, and the platform.

Example:
  kgctl version
`
)

// help returns what --help prints for a command.
func help(c *command) string {
	var b strings.Builder
	b.WriteString(c.text)
	all := commands()
	var parts []command
	for i := range all {
		if rest, ok := strings.CutPrefix(all[i].path, c.path+" "); ok && !strings.Contains(rest, " ") {
			parts = append(parts, all[i])
		}
	}
	fmt.Fprintf(&b, "\nUsage:\n  %s", c.path)
	switch {
	case len(parts) > 0:
		b.WriteString(" COMMAND [flags]\n\nCommands:\n")
		for _, part := range parts {
			fmt.Fprintf(&b, "  %-24s %s\n", strings.TrimSpace(strings.TrimPrefix(part.path, "kgctl ")+" "+part.args), part.short)
		}
	case c.args != "":
		fmt.Fprintf(&b, " %s [flags]\n", c.args)
	default:
		b.WriteString(" [flags]\n")
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := &options{}
	if c.flags != nil {
		c.flags(flags, o)
		fmt.Fprintf(&b, "\nFlags:\n%s", flags.FlagUsagesWrapped(100))
	}
	common := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.commonFlags(common)
	fmt.Fprintf(&b, "\nCommon flags:\n%s", common.FlagUsagesWrapped(100))
	return b.String()
}
