package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// gatewayEvery is how often it is looked whether the gateway has changed.
const gatewayEvery = 200 * time.Millisecond

func gatewaySet(p *program, o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "set LOCATION NODE", Short: "Have a node serve its location as gateway", Args: takes("LOCATION", "NODE"),
		Long: `Asks for a node as the gateway of its location, by the annotation
kilo.squat.ai/leader, which it takes from the location's other nodes, and waits until
it serves. Where agents run with --failover-port, the node has a slot first and the
old gateway hands over to it; without, packets are lost until all have heard of it.`,
		Example: "  kgctl gateway set europe node-7\n  kgctl gateway set \"\" node-7   # the location without a name",
		ValidArgsFunction: p.complete(o, func(s model.Snapshot) (names []string) {
			for _, l := range plan.Locations(s) {
				names = append(names, l.Name)
			}
			return names
		}),
	}
	timeout := c.Flags().Duration("timeout", 30*time.Second, "how long to wait until it serves")
	c.RunE = func(c *cobra.Command, args []string) error {
		config, err := clusterConfig(o)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), *timeout)
		defer cancel()
		return p.setGateway(ctx, o, args[0], args[1], func(node string, leader bool) error {
			return cluster.SetLeader(ctx, config, node, leader)
		})
	}
	return c
}

// setGateway moves the wish for a gateway, and waits for it to be followed.
func (p *program) setGateway(ctx context.Context, o *options, location, node string, set func(node string, leader bool) error) error {
	s, _, err := p.load(ctx, o)
	if err != nil {
		return err
	}
	l, n, err := candidate(s, location, node)
	if err != nil {
		return err
	}
	if l.Gateway == n {
		fmt.Fprintf(p.err, "kgctl: node %s serves location %q already\n", node, location)
		return nil
	}
	before := "nobody"
	if l.Gateway != nil {
		before = l.Gateway.Name
	}
	for _, other := range l.Nodes {
		if other != n && other.Leader {
			if err := set(other.Name, false); err != nil {
				return err
			}
		}
	}
	if n.Leader {
		// A wish counts once: it has to be new.
		if err := set(node, false); err != nil {
			return err
		}
		err := p.until(ctx, o, func(s model.Snapshot) bool {
			n := s.Node(node)
			return n == nil || !slices.Contains(strings.Split(n.Asked, ","), "leader")
		})
		if err != nil {
			return fmt.Errorf("node %s carried %s before, and its agent has not noticed that it was taken away (is it given as a flag, or is the agent down?): %w", node, api.Leader, err)
		}
	}
	if err := set(node, true); err != nil {
		return err
	}
	began := time.Now()
	err = p.until(ctx, o, func(s model.Snapshot) bool {
		l, n, err := candidate(s, location, node)
		return err == nil && l.Gateway == n && n.Epoch > 0
	})
	if err != nil {
		return fmt.Errorf("node %s was asked to serve location %q and does not yet; %s does. See: kgctl status; kubectl describe node %s: %w", node, location, before, node, err)
	}
	_, err = fmt.Fprintf(p.err, "kgctl: node %s serves location %q instead of %s, %s after it was asked to\n", node, location, before, time.Since(began).Round(100*time.Millisecond))
	return err
}

// candidate finds a location, and the node of it that is to serve.
func candidate(s model.Snapshot, location, node string) (*plan.Location, *model.Node, error) {
	locations := plan.Locations(s)
	var names []string
	for i := range locations {
		l := &locations[i]
		names = append(names, fmt.Sprintf("%q", l.Name))
		if l.Name != location {
			continue
		}
		if i := slices.IndexFunc(l.Candidates, func(n *model.Node) bool { return n.Name == node }); i >= 0 {
			if n := l.Candidates[i]; !n.Ready {
				return nil, nil, fmt.Errorf("node %s is not ready", node)
			}
			return l, l.Candidates[i], nil
		}
		n := s.Node(node)
		switch {
		case n == nil:
			return nil, nil, fmt.Errorf("there is no node %s; see: kgctl nodes", node)
		case n.Location != location:
			return nil, nil, fmt.Errorf("node %s is in location %q, not in %q", node, n.Location, location)
		}
		return nil, nil, fmt.Errorf("node %s cannot serve location %q: no agent has spoken for it", node, location)
	}
	return nil, nil, fmt.Errorf("there is no location %q; there are %s", location, strings.Join(names, ", "))
}

// until reads the cluster again and again.
func (p *program) until(ctx context.Context, o *options, is func(model.Snapshot) bool) error {
	for {
		s, _, err := p.load(ctx, o)
		if err == nil && is(s) {
			return nil
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return err
			}
			return fmt.Errorf("not within the time of --timeout")
		case <-time.After(gatewayEvery):
		}
	}
}
