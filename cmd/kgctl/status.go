package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
	"github.com/kilo-overlay/kilo/core/report"
)

func status(p *program, o *options) *cobra.Command {
	return p.viewCommand(o, &cobra.Command{
		Use: "status", Short: "Show the mesh as it is: nodes, locations, links, Peers, warnings",
		Long: `Shows nodes and their roles, who serves each location as gateway and why, every
WireGuard link with its last handshake and bytes, Peers, and warnings. The agents
are asked, through the API server or with --direct; who did not answer is named, and
the rest is shown all the same.`,
		Example: "  kgctl status\n  kgctl status -o json | jq '.links[] | select(.lastHandshake == null)'",
	}, func(v render.View) any { return v }, func(v render.View, now time.Time) string { return v.Text(now) })
}

func nodes(p *program, o *options) *cobra.Command {
	return p.viewCommand(o, &cobra.Command{
		Use: "nodes", Short: "Show the nodes and their roles",
		Long:    "Shows the nodes, their roles and addresses, and how their agents fare.",
		Example: "  kgctl nodes\n  kgctl nodes --direct -o yaml",
	}, func(v render.View) any { return v.Nodes }, func(v render.View, now time.Time) string { return v.NodeTable(now).String() })
}

func peers(p *program, o *options) *cobra.Command {
	return p.viewCommand(o, &cobra.Command{
		Use: "peers", Short: "Show the Peers as the gateways hear them",
		Long:    "Shows the Peers, with which gateway each shook hands last, and how much it sent and received.",
		Example: "  kgctl peers\n  kgctl peers -o json",
	}, func(v render.View) any { return v.Peers }, func(v render.View, now time.Time) string { return v.PeerTable(now).String() })
}

// viewCommand completes a command that shows a part of the mesh's view.
func (p *program) viewCommand(o *options, c *cobra.Command, part func(render.View) any, text func(render.View, time.Time) string) *cobra.Command {
	var output string
	c.Args = takes()
	o.liveFlags(c.Flags())
	check := choice(c, &output, "output", "o", "table", "form of the output", "table", "json", "yaml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return err
		}
		v, err := p.view(c.Context(), o)
		if err != nil {
			return err
		}
		if output != "table" {
			return p.printObject(output, part(v))
		}
		if c.Name() != "status" {
			for _, s := range v.Silent {
				p.warn(fmt.Sprintf("the agent of node %s did not answer: %s", s.Node, s.Why))
			}
		}
		_, err = fmt.Fprint(p.out, text(v, time.Now()))
		return err
	}
	return c
}

// view reads the cluster and asks the agents. That nobody can be asked is no
// error: what the cluster knows is shown.
func (p *program) view(ctx context.Context, o *options) (render.View, error) {
	s, warnings, err := p.load(ctx, o)
	if err != nil {
		return render.View{}, err
	}
	if err := checkMesh(s, o); err != nil {
		return render.View{}, err
	}
	live, silent := p.agents(ctx, o, s)
	return render.Look(s, warnings, live, silent), nil
}

// agents asks the agents of all nodes that have one.
func (p *program) agents(ctx context.Context, o *options, s model.Snapshot) (live map[string]*report.Status, silent map[string]string) {
	live, silent = map[string]*report.Status{}, map[string]string{}
	var spoken []model.Node
	for _, n := range s.Nodes {
		if n.Spoken {
			spoken = append(spoken, n)
		}
	}
	answers, err := p.ask(ctx, o, spoken)
	if err != nil {
		for _, n := range spoken {
			silent[n.Name] = err.Error()
		}
	}
	for _, a := range answers {
		if a.err != nil {
			silent[a.node] = a.err.Error()
			continue
		}
		live[a.node] = a.status
	}
	return live, silent
}
