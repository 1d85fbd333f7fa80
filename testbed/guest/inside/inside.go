//go:build linux

// Package inside is what runs in a guest that holds nodes of a cluster whose API
// server is outside: namespaces, real Flannel, the agent, a router between the
// nodes that lets nothing but WireGuard pass.
package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Config says which nodes of which cluster are in the guest.
type Config struct {
	Nodes []NodeConfig `json:"nodes"`
	// API is the address of the API server, without the port.
	API            string `json:"api"`
	ServiceNetwork string `json:"serviceNetwork"`
}

// NodeConfig is one node, on a /24 of its own.
type NodeConfig struct {
	Name    string `json:"name"`
	Address string `json:"address"` // 10.1.0.1
	Gateway string `json:"gateway"` // 10.1.0.254
}

// Where a guest's image has things.
const (
	AgentProgram   = "/usr/bin/kg"
	FlannelProgram = "/usr/bin/flanneld"
	ConfigFile     = "/etc/nodes.json"
	AgentAccess    = "/etc/kilo/kubeconfig"
	FlannelAccess  = "/etc/kube-flannel/kubeconfig"
	FlannelNetwork = "/etc/kube-flannel/net-conf.json"
)

const (
	subnetFile    = "/run/flannel/subnet.env"
	agentPages    = "http://127.0.0.1:1107"
	patience      = 90 * time.Second // emulation is slow
	pingEvery     = 20 * time.Millisecond
	wireGuardPort = 51820
	apiPort       = 6443
)

// Main runs a scenario with the config that the image has; say prints a line of
// progress. The same program, called with other words, holds namespaces,
// fetches pages, tells callers who they are, and asks that, for it.
func Main(scenario func(c *Config, say func(format string, args ...any)) error) {
	err := func() error {
		switch {
		case len(os.Args) > 1 && os.Args[1] == "hold":
			return hold(os.Args[2:])
		case len(os.Args) == 3 && os.Args[1] == "get":
			return get(os.Args[2])
		case len(os.Args) == 3 && os.Args[1] == "tell":
			return tellCallers(os.Args[2])
		case len(os.Args) == 3 && os.Args[1] == "ask":
			return ask(os.Args[2])
		case len(os.Args) > 1:
			return errors.New("it takes no arguments")
		}
		text, err := os.ReadFile(ConfigFile)
		if err != nil {
			return err
		}
		var c Config
		if err := json.Unmarshal(text, &c); err != nil {
			return fmt.Errorf("%s: %w", ConfigFile, err)
		}
		began := time.Now()
		return scenario(&c, func(format string, args ...any) {
			fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		})
	}()
	if err != nil {
		fmt.Printf("%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}

// Start makes the router and all nodes. The caller ends the nodes.
func Start(c *Config) (nodes []*Node, err error) {
	if err := wireRouter(); err != nil {
		return nil, err
	}
	for i := range c.Nodes {
		n, err := startNode(c, &c.Nodes[i])
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
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
