package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/kilo-overlay/kilo/core/render"
)

func explain(p *program, o *options) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "explain SRC DST", Short: "Follow a packet from one address to another, hop by hop", Args: takes("SRC", "DST"),
		Long: `Shows whose the two addresses are, and the way of a packet and of its answer as
the planner sees them: at each node the route, the WireGuard peer, the allowed IPs
that take the destination and the source, and the MTU; and where the way breaks.
It asks no agent and sends nothing. Exit code 3: it breaks.`,
		Example: "  kgctl explain 10.244.2.5 10.244.9.7\n  kgctl explain 10.5.0.1 10.244.9.7 -o json",
	}
	check := choice(c, &output, "output", "o", "text", "form of the output", "text", "json", "yaml")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		var at [2]netip.Addr
		for i, text := range args {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return usagef("%q is not an IP address", text)
			}
			at[i] = a.Unmap()
		}
		s, err := p.snapshot(c.Context(), o)
		if err != nil {
			return err
		}
		path := render.Explain(p.resolveEndpoints(c.Context(), s), at[0], at[1])
		if output == "text" {
			_, err = fmt.Fprint(p.out, path.Text())
		} else {
			err = p.printObject(output, path)
		}
		if err == nil && path.Breaks != "" {
			err = errFindings
		}
		return err
	}
	return c
}
