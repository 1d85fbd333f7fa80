//go:build linux

// Command onenode watches, inside a guest, the memory of one agent with the
// kernel's WireGuard, in a cluster whose API server is outside. It prints a
// Sample every few seconds, as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/testbed/guest/inside"
)

const (
	every  = 5 * time.Second
	period = 3 * time.Minute
)

// Sample is the agent at one moment; package bench has its twin.
type Sample struct {
	Seconds float64 `json:"seconds"` // since it was ready
	Status  string  `json:"status"`  // /proc/PID/status: the lines VmRSS and VmHWM
	Nodes   string  `json:"nodes"`   // metric kilo_nodes
	Passes  string  `json:"passes"`  // metric kilo_reconciles_total
}

func main() { inside.Main(watch) }

func watch(c *inside.Config, say func(string, ...any)) error {
	nodes, err := inside.Start(c)
	if err != nil {
		return err
	}
	n := nodes[0]
	if err := n.StartAgent(); err != nil {
		return err
	}
	// A thousand nodes are much for an emulated processor, and Flannel is at
	// them too.
	for range 4 {
		if err = n.WaitReady("api"); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, n.Log())
	}
	say("ready")
	began := time.Now()
	for time.Since(began) < period {
		time.Sleep(every)
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.AgentPid()))
		if err != nil {
			return err
		}
		s := Sample{Seconds: time.Since(began).Seconds()}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "VmHWM") {
				s.Status += line
			}
		}
		if page, err := n.Page("/metrics"); err == nil { // it may be busy
			for line := range strings.Lines(page) {
				if v, ok := strings.CutPrefix(line, "kilo_nodes "); ok {
					s.Nodes = strings.TrimSpace(v)
				}
				if v, ok := strings.CutPrefix(line, "kilo_reconciles_total "); ok {
					s.Passes = strings.TrimSpace(v)
				}
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
			return err
		}
	}
	return nil
}
