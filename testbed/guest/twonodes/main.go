//go:build linux

// Command twonodes restarts and kills the agents of two nodes in a guest under a
// stream of pings between their pods, and ends with an error where a single
// ping was lost or anything but WireGuard wanted to pass between the nodes.
package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/kilo-overlay/kilo/testbed/guest/inside"
)

const pause = 2 * time.Second // between two acts

func main() { inside.Main(scenario) }

func scenario(c *inside.Config, say func(format string, args ...any)) error {
	nodes, err := inside.Start(c)
	defer func() {
		for _, n := range nodes {
			n.End()
		}
	}()
	if err == nil && len(nodes) != 2 {
		err = fmt.Errorf("%d nodes; this is about two", len(nodes))
	}
	if err != nil {
		return err
	}
	say("two nodes with Flannel and a pod each: %s, %s", nodes[0].Pod, nodes[1].Pod)
	if err := inside.OnlyWireGuard(nodes); err != nil {
		return err
	}
	failed := acts(nodes, c, say)
	if failed != nil {
		for _, n := range nodes {
			fmt.Printf("--- %s, agent:\n%s\n", n.Name, n.Log())
		}
	}
	return failed
}

// acts are what is done to the agents.
func acts(nodes []*inside.Node, c *inside.Config, say func(string, ...any)) error {
	both := func(do func(*inside.Node) error) error {
		return errors.Join(do(nodes[0]), do(nodes[1]))
	}
	ready := func(n *inside.Node) error { return n.WaitReady("api") }
	if err := both((*inside.Node).StartAgent); err != nil {
		return err
	}
	if err := both(ready); err != nil {
		return err
	}
	for i, n := range nodes {
		if err := n.Reaches(nodes[1-i].Pod); err != nil {
			return err
		}
		if out, err := n.Run("ip", "-d", "link", "show", "kilo0"); err != nil || !inside.HasWord(out, "wireguard") {
			return fmt.Errorf("%s: kilo0 is no kernel WireGuard link: %v\n%s", n.Name, err, out)
		}
	}
	say("both agents are ready, the pods reach each other over the kernel's WireGuard")

	var pings []*inside.PingRun
	for i, n := range nodes {
		p, err := n.Ping(nodes[1-i].Pod)
		if err != nil {
			return err
		}
		pings = append(pings, p)
	}
	time.Sleep(pause)
	for _, n := range nodes {
		if err := inTurn(n.StopAgent, n.StartAgent, func() error { return ready(n) }); err != nil {
			return err
		}
		say("%s: agent restarted", n.Name)
		if err := inTurn(n.KillAgent, wait, n.StartAgent, func() error { return ready(n) }); err != nil {
			return err
		}
		say("%s: agent killed and started", n.Name)
	}
	if err := inTurn(
		func() error { return both((*inside.Node).KillAgent) }, wait,
		func() error { return both((*inside.Node).StartAgent) },
		func() error { return both(ready) },
	); err != nil {
		return err
	}
	say("both agents killed at once and started")

	// The snapshot is on disk by now. Without an API server it is what an
	// agent starts from.
	if err := inTurn(
		func() error { return inside.CutAPI(c.API) },
		func() error { return both((*inside.Node).KillAgent) }, wait,
		func() error { return both((*inside.Node).StartAgent) },
		func() error { return both(func(n *inside.Node) error { return n.WaitReady("disk") }) },
	); err != nil {
		return err
	}
	say("both agents killed and started while the API server is away")
	if err := inTurn(inside.MendAPI, func() error { return both(ready) }, wait); err != nil {
		return err
	}
	say("the API server is back")

	var lost error
	for _, p := range pings {
		sent, received, err := p.Stop()
		say("%s: %d of %d pings answered", p.What, received, sent)
		switch {
		case err != nil:
			lost = errors.Join(lost, err)
		case sent != received:
			lost = errors.Join(lost, fmt.Errorf("%s: %d of %d pings lost", p.What, sent-received, sent))
		case sent < 100:
			lost = errors.Join(lost, fmt.Errorf("%s: only %d pings: nothing is proven", p.What, sent))
		}
	}
	return errors.Join(lost, inside.NothingInClear())
}

func wait() error { time.Sleep(pause); return nil }

// inTurn does one thing after the other, until one fails.
func inTurn(things ...func() error) error {
	for _, do := range things {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}
