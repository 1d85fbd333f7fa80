package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
)

// narrows is a network in which packets up to some size reach an address.
type narrows struct {
	mu     sync.Mutex
	passes map[netip.Addr]int
	sent   map[netip.Addr]int
}

func (n *narrows) set(a netip.Addr, bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passes[a] = bytes
}

func (n *narrows) count(a netip.Addr) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent[a]
}

func (n *narrows) open(netip.Addr) (sizedEcho, error) {
	return &narrowSocket{narrows: n, replies: make(chan sizedReply, 100), done: make(chan struct{})}, nil
}

type narrowSocket struct {
	*narrows
	replies chan sizedReply
	done    chan struct{}
	once    sync.Once
}

func (s *narrowSocket) Send(to netip.Addr, size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[to]++
	if size <= s.passes[to] {
		s.replies <- sizedReply{from: to, size: size}
	}
	return nil
}

func (s *narrowSocket) Receive() (netip.Addr, int, error) {
	select {
	case r := <-s.replies:
		return r.from, r.size, nil
	case <-s.done:
		return netip.Addr{}, 0, errors.New("closed")
	}
}

func (s *narrowSocket) Close() error { s.once.Do(func() { close(s.done) }); return nil }

// The paths to many nodes are measured side by side, and each has its turn.
func TestSizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := &narrows{passes: map[netip.Addr]int{}, sent: map[netip.Addr]int{}}
		var woken atomic.Int32
		s := newSizer(n.open, func() { woken.Add(1) }, slog.New(slog.DiscardHandler))
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		me := netip.MustParseAddr("10.4.0.1")
		var targets []sizeTarget
		for i := range 40 {
			to := netip.AddrFrom4([4]byte{10, 4, 1, byte(i)})
			targets = append(targets, sizeTarget{Node: fmt.Sprintf("n%02d", i), To: to, From: me, Top: 1420, Met: true})
			n.set(to, 1500)
		}
		n.set(targets[7].To, 1340)
		n.set(targets[8].To, 0)
		s.Set(targets)
		time.Sleep(time.Minute)
		synctest.Wait()
		known := s.MTU()
		for i, target := range targets {
			want := 1420
			switch i {
			case 7:
				want = 1328
			case 8:
				want = 0
			}
			if known[target.Node] != want {
				t.Errorf("%s: %d, want %d", target.Node, known[target.Node], want)
			}
		}
		if woken.Load() == 0 {
			t.Error("nobody was told of a narrow path")
		}
		before, wakes := n.count(targets[0].To), woken.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if more := n.count(targets[0].To) - before; more < 10 || more > 13 {
			t.Errorf("%d packets in a minute at rest", more)
		}
		if woken.Load() != wakes {
			t.Error("woken without news")
		}
		// One that is no target any more is forgotten, and asked no more.
		s.Set(targets[8:])
		time.Sleep(time.Second)
		synctest.Wait()
		before = n.count(targets[7].To)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, there := s.MTU()["n07"]; there || n.count(targets[7].To) != before {
			t.Error("one that is no target any more is remembered or asked")
		}
		cancel()
		<-done
	})
}

// The agent's routes carry what was measured, also right after a restart, and its
// warning says so.
func TestNarrowPathInRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		west := w1().WireGuardIPs[0]
		n := &narrows{passes: map[netip.Addr]int{}, sent: map[netip.Addr]int{}}
		me := e1()
		narrow := func(r *rig) { r.Agent.sizer.open = n.open }
		r := start(t, me, snapshot(me, e2(), w1()), narrow)
		// Without a session nothing passes. It is asked now and then all the same:
		// that has WireGuard try.
		r.settle(10*time.Minute + 20*time.Second)
		if got := n.count(west); got < 10 || got > 11 {
			t.Errorf("%d packets in ten minutes to a party without a session", got)
		}
		n.set(west, 1340)
		r.kernel.hear(PeerStatus{Key: w1().Key, Endpoint: w1().Endpoint.AddrPort(), LastHandshake: time.Now()})
		r.settle(20 * time.Second)
		if route := r.route(t, "10.244.9.0/24"); route == nil || route.MTU != 1328 {
			t.Fatalf("route %v, want one of 1328 bytes", route)
		}
		if !warned(r.Status(t.Context()).Warnings, "PathMTU", "1328") {
			t.Errorf("not told: %v", r.Status(t.Context()).Warnings)
		}
		r.stop()
		// The next agent can measure nothing yet.
		again := start(t, *r.cluster.me(), snapshot(*r.cluster.me(), e2(), w1()), func(next *rig) {
			next.kernel = r.kernel
			next.Agent.Kernel = r.kernel
			next.Agent.sizer.open = func(netip.Addr) (sizedEcho, error) { return nil, errors.New("not yet") }
		})
		again.settle(20 * time.Second)
		if route := again.route(t, "10.244.9.0/24"); route == nil || route.MTU != 1328 {
			t.Errorf("after a restart: route %v, want one of 1328 bytes", route)
		}
	})
}

// Real packets: as large as they are asked to be, in one piece, whatever the
// route's MTU says, and what is larger than the device carries is refused.
func TestSizedEcho(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, "ip link add near type veth peer name away", "ip link set near up mtu 1400", "ip netns add far", "ip link set away netns far",
			"ip -n far link set away up mtu 1400", "ip -n far link set lo up", "ip addr add 10.9.0.1/24 dev near", "ip -n far addr add 10.9.0.2/24 dev away",
			"ip addr add fd00:9::1/64 dev near nodad", "ip -n far addr add fd00:9::2/64 dev away nodad",
			"ip route add 10.9.0.2/32 dev near mtu 1300")
		for _, c := range []struct{ from, to string }{{"10.9.0.1", "10.9.0.2"}, {"fd00:9::1", "fd00:9::2"}} {
			from, to := netip.MustParseAddr(c.from), netip.MustParseAddr(c.to)
			e, err := openSizedEcho(from)
			if err != nil {
				t.Fatal(err)
			}
			other, err := openSizedEcho(from)
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range []int{pathSmall, 576, 1300, 1350, 1400} {
				if err := other.Send(to, size-16); err != nil {
					t.Error(err)
				}
				if err := e.Send(to, size); err != nil {
					t.Errorf("%s, %d bytes: %v", to, size, err)
				}
				stop := time.AfterFunc(5*time.Second, func() { e.Close() })
				at, got, err := e.Receive()
				stop.Stop()
				if err != nil || at != to || got != size {
					t.Errorf("%s, %d bytes: a reply of %d from %s (%v)", to, size, got, at, err)
				}
			}
			if err := e.Send(to, 1401); err == nil {
				t.Errorf("%s: 1401 bytes went out of a device of 1400", to)
			}
			e.Close()
			other.Close()
			if _, _, err := e.Receive(); err == nil {
				t.Error("a closed socket still receives")
			}
		}
		if _, err := openSizedEcho(netip.MustParseAddr("192.0.2.1")); err == nil {
			t.Error("bound to an address that is not ours")
		}
	}, "ip")
}
