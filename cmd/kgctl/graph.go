package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/kilo-overlay/kilo/core/render"
)

func graph(p *program, o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "graph", Short: "Draw the mesh", Args: takes(),
		Long: `Draws the mesh: a box for each location, "(leader)" at its gateway, the nodes' pod
prefixes, addresses and endpoints, and what is connected with what. Solid edges
between leaders are tunnels; dotted ones are tunnels that cannot come up, because
neither side has an endpoint. Dashed edges lead to Peers.`,
		Example: `  kgctl graph | dot -Tsvg > mesh.svg
  kgctl graph -o svg > mesh.svg    # without Graphviz
  kgctl graph -o png > mesh.png`,
	}
	var output string
	check := choice(c, &output, "output", "o", "dot", "form of the drawing", "dot", "svg", "png")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return err
		}
		s, err := p.snapshot(c.Context(), o)
		if err != nil {
			return err
		}
		switch output {
		case "svg":
			_, err = io.WriteString(p.out, render.Draw(s).SVG())
		case "png":
			err = writePNG(p.out, render.Draw(s))
		default:
			_, err = io.WriteString(p.out, render.Graph(s))
		}
		return err
	}
	return c
}
