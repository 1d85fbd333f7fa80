package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// benchLine is what `go test -bench` prints for BenchmarkPlan.
var benchLine = regexp.MustCompile(`^BenchmarkPlan/nodes=(\d+)/locations=(\d+)/(\w+)-\d+\s+\d+\s+([\d.]+) ns/op\s+([\d.]+) cpu-ns/op\s+(\d+) B/op\s+(\d+) allocs/op`)

// planning runs BenchmarkPlan several times and takes the medians.
func planning(ctx context.Context, r *report) error {
	root, err := tools.SourceRoot()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-bench=^BenchmarkPlan$", "-benchmem", "-count=5", "./core/plan")
	cmd.Dir = root
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s%s", err, out, problem.String())
	}
	type key struct{ nodes, locations, role string }
	type figures struct{ clock, processor, bytes, allocations []float64 }
	var order []key
	all := map[key]*figures{}
	for line := range strings.Lines(string(out)) {
		m := benchLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		k := key{m[1], m[2], m[3]}
		if all[k] == nil {
			order = append(order, k)
			all[k] = &figures{}
		}
		for i, list := range []*[]float64{&all[k].clock, &all[k].processor, &all[k].bytes, &all[k].allocations} {
			v, err := strconv.ParseFloat(m[4+i], 64)
			if err != nil {
				return err
			}
			*list = append(*list, v)
		}
	}
	if len(order) == 0 {
		return fmt.Errorf("the benchmark printed no figures:\n%s", out)
	}
	r.section("Plan and difference",
		"What a pass of the agent thinks when nothing is to be done: the plan, and its difference from what the kernel holds. Medians of "+
			"five runs; the processor's time is what other work on the machine does not lengthen.")
	t := r.table("nodes", "locations", "on a", "ms", "processor ms", "KiB allocated", "allocations")
	for _, k := range order {
		f := all[k]
		t.row(k.nodes, k.locations, k.role, milliseconds(f.clock), milliseconds(f.processor), fmt.Sprintf("%.0f", median(f.bytes)/1024), fmt.Sprintf("%.0f", median(f.allocations)))
	}
	return nil
}

func milliseconds(ns []float64) string { return fmt.Sprintf("%.2f", median(ns)/1e6) }
