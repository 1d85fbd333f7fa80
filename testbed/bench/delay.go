//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/testbed/bench/crowd"
	"github.com/kilo-overlay/kilo/testbed/lab"
)

// delays measures how long it takes from a Node's change to the data path of
// the last agent that has to follow.
func delays(ctx context.Context, r *report) error {
	l, down, err := up(ctx, r, "delay", lab.Default())
	if err != nil {
		return err
	}
	defer down()
	c, err := client(l)
	if err != nil {
		return err
	}
	var followers []*lab.Machine
	for _, m := range l.Agents() {
		if m.Location != "b" {
			followers = append(followers, m)
		}
	}
	r.section("From a Node's change to the data path",
		"A Node gets an allowed-location-ips entry. The clock starts before the PATCH is sent and stops at the moment when the kernel "+
			"announces the route in table 1107, the last thing to be written, on each agent's node.")
	t := r.table("cluster", "changes", "agents", "first agent: median ms", "last agent: median ms", "p99 ms")
	return follow(ctx, c, t, "the default lab, 8 nodes", "b2", followers, 100)
}

// crowdDelay is delays in a lab that a crowd is part of.
func crowdDelay(ctx context.Context, r *report, l *lab.Lab, c *kubernetes.Clientset) error {
	r.line("From a Node's change to the data path, in this cluster:")
	t := r.table("cluster", "changes", "agents", "first agent: median ms", "last agent: median ms", "p99 ms")
	return follow(ctx, c, t, fmt.Sprintf("%d nodes", crowdNodes+len(l.Nodes())), crowd.Node(crowdNodes-1, crowdLocations).Name, l.Agents(), 100)
}

// follow changes a Node many times and times the agents.
func follow(ctx context.Context, c *kubernetes.Clientset, t *table, what, node string, agents []*lab.Machine, times int) error {
	w, err := watchRoutes(agents)
	if err != nil {
		return err
	}
	defer w.close()
	var first, last []float64
	for i := range times {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 0}), 24)
		began := time.Now()
		if err := allow(ctx, c, node, p); err != nil {
			return err
		}
		times, err := w.wait(ctx, p, len(agents))
		if err != nil {
			return err
		}
		earliest, latest := times[0], times[0]
		for _, at := range times {
			if at.Before(earliest) {
				earliest = at
			}
			if at.After(latest) {
				latest = at
			}
		}
		first = append(first, float64(earliest.Sub(began).Microseconds())/1000)
		last = append(last, float64(latest.Sub(began).Microseconds())/1000)
		// A change at a time, each from rest.
		if err := sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	if err := allow(ctx, c, node, netip.Prefix{}); err != nil {
		return err
	}
	t.row(what, times, len(agents), fmt.Sprintf("%.0f", median(first)), fmt.Sprintf("%.0f", median(last)), fmt.Sprintf("%.0f", quantile(last, 0.99)))
	return nil
}

// routeWatch hears of routes that appear in the overlay's table on several nodes.
type routeWatch struct {
	done chan struct{}
	mu   sync.Mutex
	seen map[netip.Prefix]map[string]time.Time // by destination and node
	news chan struct{}
}

func watchRoutes(nodes []*lab.Machine) (*routeWatch, error) {
	w := &routeWatch{done: make(chan struct{}), seen: map[netip.Prefix]map[string]time.Time{}, news: make(chan struct{}, 1)}
	for _, m := range nodes {
		ns, err := netns.GetFromPid(m.Daemon("kg"))
		if err != nil {
			w.close()
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		updates := make(chan netlink.RouteUpdate, 1024)
		err = netlink.RouteSubscribeWithOptions(updates, w.done, netlink.RouteSubscribeOptions{Namespace: &ns})
		ns.Close()
		if err != nil {
			w.close()
			return nil, fmt.Errorf("%s: watch routes: %w", m.Name, err)
		}
		go func() {
			for u := range updates {
				w.take(m.Name, &u, time.Now())
			}
		}()
	}
	return w, nil
}

func (w *routeWatch) take(node string, u *netlink.RouteUpdate, at time.Time) {
	if u.Type != unix.RTM_NEWROUTE || u.Table != state.TableOverlay || u.Route.Type != unix.RTN_UNICAST || u.Dst == nil {
		return
	}
	addr, _ := netip.AddrFromSlice(u.Dst.IP)
	ones, _ := u.Dst.Mask.Size()
	dst := netip.PrefixFrom(addr.Unmap(), ones)
	w.mu.Lock()
	if w.seen[dst] == nil {
		w.seen[dst] = map[string]time.Time{}
	}
	if _, again := w.seen[dst][node]; !again {
		w.seen[dst][node] = at
	}
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// wait returns when the route appeared on each of so many nodes.
func (w *routeWatch) wait(ctx context.Context, dst netip.Prefix, nodes int) ([]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		w.mu.Lock()
		var times []time.Time
		for _, at := range w.seen[dst] {
			times = append(times, at)
		}
		w.mu.Unlock()
		if len(times) == nodes {
			return times, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the route to %s is on %d of %d nodes: %w", dst, len(times), nodes, ctx.Err())
		case <-w.news:
		}
	}
}

func (w *routeWatch) close() { close(w.done) }
