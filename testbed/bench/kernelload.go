//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/testbed/guest"
	"github.com/kilo-overlay/kilo/testbed/lab"
)

// kernelLoad measures the memory of an agent with the kernel's device, in a
// guest. Its processor time would be that of the emulation.
func kernelLoad(ctx context.Context, r *report) error {
	if err := guest.Check(); err != nil {
		return err
	}
	kernel, err := guest.FindKernel(ctx, r.say)
	if err != nil {
		return err
	}
	spec := small()
	cp := spec.Locations[len(spec.Locations)-1]
	spec.Locations = []lab.Location{guest.NodeMachine("east", 1), cp}
	spec.CNI, spec.ProxyMode, spec.NoAgent = lab.CNINone, lab.ProxyOff, true
	l, down, err := up(ctx, r, "kernel", spec)
	if err != nil {
		return err
	}
	defer down()
	c, err := client(l)
	if err != nil {
		return err
	}
	if err := l.Machine("cp").KillDaemon(ctx, "kube-controller-manager"); err != nil {
		return err
	}
	if err := populate(ctx, c, crowdNodes, crowdLocations); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kilo-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g, err := guest.WithNodes(ctx, r.progress, l, "./testbed/bench/onenode", dir, l.Machine("east"))
	if err != nil {
		return err
	}
	r.say("the guest boots")
	type end struct {
		ran []guest.Result
		err error
	}
	ended := make(chan end, 1)
	go func() {
		ran, err := g.Boot(ctx, kernel, dir, l.Machine("cp").Exec)
		ended <- end{ran, err}
	}()
	// From its first word on: a minute of rest, then one in which nodes change.
	for spoken := false; !spoken; {
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		n, err := c.CoreV1().Nodes().Get(ctx, "east", metav1.GetOptions{})
		if err != nil {
			return err
		}
		spoken = n.Annotations[api.Key] != ""
		select {
		case e := <-ended:
			return fmt.Errorf("the guest ended before its agent spoke: %w %v", e.err, e.ran)
		default:
		}
	}
	if err := sleep(ctx, window+settling); err != nil {
		return err
	}
	before := time.Now()
	if _, err := churn(ctx, window, 10, crowdNodes, toggle(c)); err != nil {
		return err
	}
	r.say("600 changes in %.0f s", time.Since(before).Seconds())
	e := <-ended
	if e.err != nil {
		return e.err
	}
	if e.ran[0].Code != 0 {
		return fmt.Errorf("onenode: exit code %d:\n%s", e.ran[0].Code, e.ran[0].Output)
	}
	return tellKernelLoad(r, kernel.Version, e.ran[0].Output)
}

// sample is what onenode prints.
type sample struct {
	Seconds float64 `json:"seconds"`
	Status  string  `json:"status"`
	Nodes   string  `json:"nodes"`
	Passes  string  `json:"passes"`
}

func tellKernelLoad(r *report, version, output string) error {
	var rest, busy []float64 // RSS in MiB
	peak, passes, known := 0, 0.0, ""
	last := -1.0
	for line := range strings.Lines(output) {
		var s sample
		if json.Unmarshal([]byte(line), &s) != nil || s.Status == "" {
			continue
		}
		rss, high := memory(s.Status)
		peak = high
		now, err := strconv.ParseFloat(s.Passes, 64)
		if err != nil {
			continue
		}
		known = s.Nodes
		// The first half minute is still the start. When passes come one after
		// the other the changes have begun; emulated, they take seconds each.
		switch {
		case s.Seconds < 30 || last < 0:
		case len(busy) > 0 || now-last >= 2:
			busy = append(busy, float64(rss))
			passes += now - last
		default:
			rest = append(rest, float64(rss))
		}
		last = now
	}
	if len(rest) == 0 || len(busy) == 0 {
		return errors.New("no samples at rest, or none of changes:\n" + output)
	}
	r.section(fmt.Sprintf("An agent with the kernel's device, %s nodes", known),
		fmt.Sprintf("A gateway in a guest with Linux %s, real Flannel beside it, the API server outside. Medians; processor time would be the emulation's.", version))
	t := r.table("while", "RSS MiB")
	t.row("at rest", fmt.Sprintf("%.0f", median(rest)))
	t.row("10 nodes a second change", fmt.Sprintf("%.0f", median(busy)))
	t.row("peak, the start included", peak)
	r.line("The changes made %.0f passes.", passes)
	return nil
}
