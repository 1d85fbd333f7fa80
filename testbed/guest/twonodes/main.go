//go:build linux

// Command twonodes runs, inside a guest, two nodes of a cluster whose API server
// is outside: each a network and a mount namespace with real Flannel, one pod,
// and the agent with the kernel's WireGuard. Between them is a router, which
// lets nothing but WireGuard pass from one to the other.
//
// It restarts and kills the agents under a stream of pings between the pods, and
// ends with an error where a single ping was lost.
//
//	twonodes FILE       the scenario; FILE holds a config
//	twonodes hold …     what holds a node's or a pod's namespaces
//	twonodes get URL    fetches a page, from wherever it is started
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// config is the scenario's.
type config struct {
	Nodes [2]nodeConfig `json:"nodes"`
	// API is the address of the API server, without the port.
	API string `json:"api"`
	// Networks are the cluster's.
	PodNetwork     string `json:"podNetwork"`
	ServiceNetwork string `json:"serviceNetwork"`
}

// nodeConfig is one node. Its gateway is the last usable address of a /24.
type nodeConfig struct {
	Name    string `json:"name"`
	Address string `json:"address"` // 10.1.0.1
	Gateway string `json:"gateway"` // 10.1.0.254
}

// Where the guest's image has things.
const (
	agentProgram    = "/usr/bin/kg"
	flannelProgram  = "/usr/bin/flanneld"
	agentConfig     = "/etc/kilo/kubeconfig"
	flannelConfig   = "/etc/kube-flannel/kubeconfig"
	subnetFile      = "/run/flannel/subnet.env"
	patience        = 90 * time.Second // emulation is slow
	pingEvery       = 20 * time.Millisecond
	pause           = 2 * time.Second // between two acts
	wireGuardPort   = 51820
	apiPort         = 6443
	agentStatusPage = "http://127.0.0.1:1107/status"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "hold":
		err = hold(os.Args[2:])
	case len(os.Args) == 3 && os.Args[1] == "get":
		err = get(os.Args[2])
	case len(os.Args) == 2:
		err = scenario(os.Args[1])
	default:
		err = errors.New("usage: twonodes FILE")
	}
	if err != nil {
		fmt.Println("twonodes:", err)
		os.Exit(1)
	}
}

func get(url string) error {
	response, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func scenario(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if err := wireRouter(); err != nil {
		return err
	}
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.end()
		}
	}()
	for i := range c.Nodes {
		n, err := startNode(&c, &c.Nodes[i])
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	say("two nodes with Flannel and a pod each: %s, %s", nodes[0].pod, nodes[1].pod)
	if err := onlyWireGuard(nodes); err != nil {
		return err
	}
	failed := acts(nodes, &c, say)
	if failed != nil {
		for _, n := range nodes {
			fmt.Printf("--- %s, agent:\n%s\n", n.Name, n.log())
		}
	}
	return failed
}

// acts are what is done to the agents.
func acts(nodes []*node, c *config, say func(string, ...any)) error {
	both := func(do func(*node) error) error {
		return errors.Join(do(nodes[0]), do(nodes[1]))
	}
	ready := func(n *node) error { return n.waitReady("api") }
	if err := both((*node).startAgent); err != nil {
		return err
	}
	if err := both(ready); err != nil {
		return err
	}
	for i, n := range nodes {
		if err := n.reaches(nodes[1-i].pod); err != nil {
			return err
		}
		if out, err := n.run("ip", "-d", "link", "show", "kilo0"); err != nil || !hasWord(out, "wireguard") {
			return fmt.Errorf("%s: kilo0 is no kernel WireGuard link: %v\n%s", n.Name, err, out)
		}
	}
	say("both agents are ready, the pods reach each other over the kernel's WireGuard")

	var pings []*pingRun
	for i, n := range nodes {
		p, err := n.ping(nodes[1-i].pod)
		if err != nil {
			return err
		}
		pings = append(pings, p)
	}
	time.Sleep(pause)
	for _, n := range nodes {
		if err := inTurn(n.stopAgent, n.startAgent, func() error { return ready(n) }); err != nil {
			return err
		}
		say("%s: agent restarted", n.Name)
		if err := inTurn(n.killAgent, wait, n.startAgent, func() error { return ready(n) }); err != nil {
			return err
		}
		say("%s: agent killed and started", n.Name)
	}
	if err := inTurn(
		func() error { return both((*node).killAgent) }, wait,
		func() error { return both((*node).startAgent) },
		func() error { return both(ready) },
	); err != nil {
		return err
	}
	say("both agents killed at once and started")

	// The snapshot is on disk by now. Without an API server it is what an
	// agent starts from.
	if err := inTurn(
		func() error { return cutAPI(c.API) },
		func() error { return both((*node).killAgent) }, wait,
		func() error { return both((*node).startAgent) },
		func() error { return both(func(n *node) error { return n.waitReady("disk") }) },
	); err != nil {
		return err
	}
	say("both agents killed and started while the API server is away")
	if err := inTurn(mendAPI, func() error { return both(ready) }, wait); err != nil {
		return err
	}
	say("the API server is back")

	var lost error
	for _, p := range pings {
		sent, received, err := p.stop()
		say("%s: %d of %d pings answered", p.what, received, sent)
		switch {
		case err != nil:
			lost = errors.Join(lost, err)
		case sent != received:
			lost = errors.Join(lost, fmt.Errorf("%s: %d of %d pings lost", p.what, sent-received, sent))
		case sent < 100:
			lost = errors.Join(lost, fmt.Errorf("%s: only %d pings: nothing is proven", p.what, sent))
		}
	}
	return errors.Join(lost, nothingInClear())
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
