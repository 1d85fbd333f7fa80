//go:build linux

// Command bench measures what docs/performance.md reports, and prints it as
// Markdown. It runs as root on a machine that can run labs and guests; progress
// goes to standard error.
//
//	go run ./testbed/bench                   everything
//	go run ./testbed/bench plan load         some of it: plan, change, load, kernel, delay, tunnel, cilium
//	go run ./testbed/bench -rounds=2 cilium  with fewer rounds of throughput than 5
//
// Figures of time mean little on a machine that does something else, so the
// machine's load is printed beside them; ratios are taken within one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

type measurement struct {
	name string
	run  func(context.Context, *report) error
}

func measurements() []measurement {
	return []measurement{
		{"plan", planning},
		{"change", oneChange},
		{"load", agentLoad},
		{"kernel", kernelLoad},
		{"delay", delays},
		{"tunnel", tunnels},
		{"cilium", ciliumTunnels},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rounds := flag.Int("rounds", 5, "how often each path's throughput and round trip are measured")
	flag.Parse()
	r := &report{progress: os.Stderr, began: time.Now(), rounds: max(*rounds, 1)}
	err := run(ctx, r, flag.Args())
	fmt.Println(r)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, r *report, names []string) error {
	all := measurements()
	for _, n := range names {
		if !slices.ContainsFunc(all, func(m measurement) bool { return m.name == n }) {
			var known []string
			for _, m := range all {
				known = append(known, m.name)
			}
			return fmt.Errorf("no figure is called %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	r.line("Measured on %s.", machine())
	var failed error
	for _, m := range all {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		before := load()
		r.say("%s (load %s)", m.name, before)
		if err := m.run(ctx, r); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", m.name, err))
			continue
		}
		r.line("Load average before and after: %s, %s.", before, load())
	}
	return failed
}
