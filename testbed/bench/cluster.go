//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/testbed/bench/crowd"
	"github.com/kilo-overlay/kilo/testbed/lab"
)

// client is an administrator's who is in a hurry.
func client(l *lab.Lab) (*kubernetes.Clientset, error) {
	config, err := l.RESTConfig("admin")
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 2000, 2000
	return kubernetes.NewForConfig(config)
}

// populate creates the objects of a crowd.
func populate(ctx context.Context, c *kubernetes.Clientset, nodes, locations int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range nodes {
		g.Go(func() error {
			n := crowd.Node(i, locations)
			made, err := c.CoreV1().Nodes().Create(ctx, crowd.Object(&n), metav1.CreateOptions{})
			if err != nil {
				return err
			}
			made.Status = crowd.Status(&n)
			_, err = c.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
			return err
		})
	}
	return g.Wait()
}

// allow gives a Node an allowed-location-ips entry, which is a route on every
// node of other locations; an invalid prefix takes it away.
func allow(ctx context.Context, c *kubernetes.Clientset, node string, p netip.Prefix) error {
	var value any
	if p.IsValid() {
		value = p.String()
	}
	return patch(ctx, c, node, "", map[string]any{"metadata": map[string]any{"annotations": map[string]any{api.AllowedLocationIPs: value}}})
}

// heartbeat is what a kubelet writes every few minutes: nothing that concerns
// the mesh.
func heartbeat(ctx context.Context, c *kubernetes.Clientset, node string) error {
	now := metav1.Now()
	return patch(ctx, c, node, "status", map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "True", "lastHeartbeatTime": now},
	}}})
}

func patch(ctx context.Context, c *kubernetes.Clientset, node, sub string, change any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	var subresources []string
	if sub != "" {
		subresources = []string{sub}
	}
	_, err = c.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, body, metav1.PatchOptions{}, subresources...)
	return err
}

// churn does something to so many different nodes of a crowd a second, until
// that time is over. It returns how often it did.
func churn(ctx context.Context, period time.Duration, aSecond, nodes int, do func(ctx context.Context, i int) error) (int, error) {
	order := rand.New(rand.NewPCG(1, 1)).Perm(nodes)
	tick := time.NewTicker(time.Second / time.Duration(aSecond))
	defer tick.Stop()
	g, within := errgroup.WithContext(ctx)
	n := 0
	for end := time.Now().Add(period); time.Now().Before(end); n++ {
		select {
		case <-within.Done():
			return n, g.Wait()
		case <-tick.C:
		}
		i := order[n%nodes]
		g.Go(func() error { return do(within, i) })
	}
	return n, g.Wait()
}

// usage is what a process has used.
type usage struct {
	processor time.Duration
	at        time.Time
	rss, peak int // MiB
}

func usageOf(pid int) (usage, error) {
	u := usage{at: time.Now()}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	// The name, in parentheses, may hold anything. After it, utime and stime
	// are the 12th and 13th fields, in hundredths of a second (proc(5)).
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	for _, f := range fields[11:13] {
		ticks, err := strconv.Atoi(f)
		if err != nil {
			return u, err
		}
		u.processor += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	u.rss, u.peak = memory(string(status))
	return u, nil
}

// memory reads VmRSS and VmHWM out of /proc/PID/status, in MiB.
func memory(status string) (rss, peak int) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		var kib int
		if _, err := fmt.Sscan(value, &kib); err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			rss = (kib + 512) / 1024
		case "VmHWM":
			peak = (kib + 512) / 1024
		}
	}
	return rss, peak
}

// metric reads a metric without labels off an agent's page.
func metric(page, name string) (float64, error) {
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

func agentMetric(ctx context.Context, m *lab.Machine, name string) (float64, error) {
	page, err := m.AgentGet(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	return metric(page, name)
}
