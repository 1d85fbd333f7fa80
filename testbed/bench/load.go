//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kilo-overlay/kilo/testbed/bench/crowd"
	"github.com/kilo-overlay/kilo/testbed/lab"
)

const (
	crowdNodes     = 1000
	crowdLocations = 20
	window         = time.Minute
	settling       = 20 * time.Second
)

// up brings up a lab for a measurement. The caller calls down.
func up(ctx context.Context, r *report, what string, spec lab.Spec) (l *lab.Lab, down func(), err error) {
	if err := lab.Check(); err != nil {
		return nil, nil, err
	}
	// As in a cluster: debug lines would cost time.
	spec.AgentFlags = append(spec.AgentFlags, "--log-level=info")
	name := fmt.Sprintf("bench-%s-%d", what, os.Getpid())
	down = func() {
		if err := lab.Down(context.Background(), name); err != nil {
			r.say("lab %s: %v", name, err)
		}
	}
	l, err = lab.Up(ctx, spec, lab.Options{Name: name, Progress: r.progress})
	if err == nil && len(l.Agents()) > 0 {
		_, err = l.WaitForMesh(ctx, time.Minute)
	}
	if err != nil {
		down()
		return nil, nil, err
	}
	return l, down, nil
}

// small is a location with a gateway and a member, and the control plane's host.
func small() lab.Spec {
	spec := lab.Default()
	east := spec.Locations[0]
	east.Nodes = []lab.Node{{Name: "a1", Public: true, Pods: 1}, {Name: "a2", Pods: 1}}
	spec.Locations = []lab.Location{east, spec.Locations[len(spec.Locations)-1]}
	spec.PodNetwork = crowd.Pods()
	return spec
}

// agentLoad measures what agents use in a cluster of a thousand nodes.
func agentLoad(ctx context.Context, r *report) error {
	l, down, err := up(ctx, r, "load", small())
	if err != nil {
		return err
	}
	defer down()
	c, err := client(l)
	if err != nil {
		return err
	}
	agents := []*lab.Machine{l.Machine("a1"), l.Machine("a2")} // gateway, member
	r.section(fmt.Sprintf("Agents in a cluster of %d nodes", crowdNodes+len(l.Nodes())),
		fmt.Sprintf("%d Node objects of %d locations in the real API server, of the size that kubelets make them, beside a lab of %d nodes. "+
			"The built-in device, in the agent's process. Processor time in percent of one core, over %.0f s.",
			crowdNodes, crowdLocations, len(l.Nodes()), window.Seconds()))
	t := r.table("agent", "while", "RSS MiB", "peak MiB", "processor %", "passes")

	if err := measureLoad(ctx, r, t, agents, "at rest, without the thousand", 0, nil); err != nil {
		return err
	}
	// Nobody renews the Leases of the crowd: who would call its nodes dead has
	// done its work, which was to give pod prefixes to the others.
	if err := l.Machine("cp").KillDaemon(ctx, "kube-controller-manager"); err != nil {
		return err
	}
	began := time.Now()
	if err := populate(ctx, c, crowdNodes, crowdLocations); err != nil {
		return err
	}
	r.say("%d Nodes created in %.0f s", crowdNodes, time.Since(began).Seconds())
	for _, a := range agents {
		if err := waitForNodes(ctx, a, crowdNodes+len(l.Nodes())); err != nil {
			return err
		}
	}
	if err := sleep(ctx, settling); err != nil {
		return err
	}
	// The agent that saw the cluster grow has garbage of every step.
	if err := measureLoad(ctx, r, t, agents, "at rest, after they were created", 0, nil); err != nil {
		return err
	}
	for _, a := range agents {
		if err := a.RestartAgent(ctx); err != nil {
			return err
		}
		if err := a.WaitForAgent(ctx, time.Minute); err != nil {
			return err
		}
	}
	if err := sleep(ctx, settling); err != nil {
		return err
	}
	if err := measureLoad(ctx, r, t, agents, "at rest, restarted", 0, nil); err != nil {
		return err
	}
	if err := measureLoad(ctx, r, t, agents, "10 heartbeats a second", 10, func(ctx context.Context, i int) error {
		return heartbeat(ctx, c, crowd.Node(i, crowdLocations).Name)
	}); err != nil {
		return err
	}
	if err := measureLoad(ctx, r, t, agents, "10 nodes a second change", 10, toggle(c)); err != nil {
		return err
	}
	return crowdDelay(ctx, r, l, c)
}

// toggle gives a node of the crowd a prefix of its own, or takes it away: what
// every node of other locations has to follow.
func toggle(c *kubernetes.Clientset) func(context.Context, int) error {
	given := make([]bool, crowdNodes) // each node has its turns one after the other
	return func(ctx context.Context, i int) error {
		var p netip.Prefix
		if given[i] = !given[i]; given[i] {
			p = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i>>8), byte(i), 0}), 24)
		}
		return allow(ctx, c, crowd.Node(i, crowdLocations).Name, p)
	}
}

func waitForNodes(ctx context.Context, m *lab.Machine, want int) error {
	for end := time.Now().Add(2 * time.Minute); ; {
		n, err := agentMetric(ctx, m, "kilo_nodes")
		if err == nil && int(n) == want {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: the agent knows %v nodes, want %d (%v)", m.Name, n, want, err)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// measureLoad writes a row for each agent of what it uses during a window.
func measureLoad(ctx context.Context, r *report, t *table, agents []*lab.Machine, what string, aSecond int, do func(context.Context, int) error) error {
	type start struct {
		usage
		passes float64
	}
	starts := make([]start, len(agents))
	look := func(m *lab.Machine) (s start, err error) {
		if s.passes, err = agentMetric(ctx, m, "kilo_reconciles_total"); err != nil {
			return s, err
		}
		s.usage, err = usageOf(m.Daemon("kg"))
		return s, err
	}
	for i, m := range agents {
		var err error
		if starts[i], err = look(m); err != nil {
			return err
		}
	}
	if do == nil {
		if err := sleep(ctx, window); err != nil {
			return err
		}
	} else if n, err := churn(ctx, window, aSecond, crowdNodes, do); err != nil {
		return err
	} else {
		r.say("%s: %d in %.0f s", what, n, window.Seconds())
	}
	for i, m := range agents {
		end, err := look(m)
		if err != nil {
			return err
		}
		role := "gateway"
		if i > 0 {
			role = "member"
		}
		share := 100 * (end.processor - starts[i].processor).Seconds() / end.at.Sub(starts[i].at).Seconds()
		t.row(role, what, end.rss, end.peak, fmt.Sprintf("%.1f", share), end.passes-starts[i].passes)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
