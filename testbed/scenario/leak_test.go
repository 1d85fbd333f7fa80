package scenario

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The agent of a member is not in the data path: killed and restarted under
// streams of packets, none is lost.
func memberWithoutAgent(t *testing.T, l *lab.Lab) {
	n := l.Machine("a3")
	wires := watchWires(t, l)
	streams := startStreams(t, l, "a3 b2", "c2 a3", "node/a3 node/b2")
	ok(t, n.KillAgent(t.Context()))
	time.Sleep(2 * time.Second)
	ok(t, n.StartAgent(t.Context()))
	time.Sleep(2 * time.Second)
	ok(t, n.RestartAgent(t.Context()))
	time.Sleep(2 * time.Second)
	for _, s := range streams {
		if stats := must(s.run.Stop(t.Context()))(t); stats.Lost() > 0 {
			t.Errorf("%s: %s", s.name, stats)
		}
	}
	wires.quiet(t)
	whole(t, l, soon)
}

// The agent of a gateway ends and is started later. With the kernel's device
// that costs nothing; the built-in one goes with its process, and so does all
// that passes it. Nothing of it takes another way: not in clear, on no wire.
// Traffic is back soon after the agent, whichever side speaks.
func gatewayWithoutAgent(t *testing.T, l *lab.Lab) {
	kill, stop := (*lab.Machine).KillAgent, (*lab.Machine).StopAgent
	for _, c := range []struct {
		gateway string
		streams []string
		end     string
	}{
		{"a1", []string{"b2 a3", "node/b2 node/a2", "a3 c2", "node/a3 node/c1"}, "killed"},
		{"a1", []string{"c2 a3", "node/c1 node/a1", "a3 b2", "node/a2 node/b2"}, "stopped"},
		{"c1", []string{"a3 c2", "node/a2 node/c1", "c2 b2", "node/c2 node/b1"}, "killed"}, // behind NAT
	} {
		n := l.Machine(c.gateway)
		wires := watchWires(t, l)
		streams := startStreams(t, l, c.streams...)
		time.Sleep(time.Second)

		end := map[string]func(*lab.Machine, context.Context) error{"killed": kill, "stopped": stop}[c.end]
		began := time.Now()
		ok(t, end(n, t.Context()))
		time.Sleep(3 * time.Second)
		if l.Machine("cp").Ping(t.Context(), l.Pod(c.gateway).Addr) == nil {
			t.Errorf("a pod behind %s answers without its agent: nothing was tried", c.gateway)
		}
		dead := time.Since(began)
		ok(t, n.StartAgent(t.Context()))
		for _, s := range streams {
			eventually(t, soon, func() error { return s.from.Ping(t.Context(), s.to.Addr) })
			stats := must(s.run.Stop(t.Context()))(t)
			back := stats.LongestGap - dead
			t.Logf("%s %s for %.1f s: %s is back %.2f s after its start", c.gateway, c.end, dead.Seconds(), s.name, back.Seconds())
			if stats.LongestGap < dead/2 || back > 5*time.Second {
				t.Errorf("%s: %s", s.name, stats)
			}
		}
		wires.quiet(t)
		whole(t, l, soon)
	}
}

// stream is one place pinging another, ten times a second.
type stream struct {
	name     string
	from, to *lab.Place
	run      *lab.PingRun
}

// startStreams starts a stream for each "FROM TO": the pods of these nodes, or
// with node/ before the name the nodes. Streams between two locations should go
// the same way: a side that sends starts handshakes, and so helps the other.
func startStreams(t *testing.T, l *lab.Lab, pairs ...string) []stream {
	t.Helper()
	place := func(name string) *lab.Place {
		if node, yes := strings.CutPrefix(name, "node/"); yes {
			return &l.Machine(node).Place
		}
		return &l.Pod(name).Place
	}
	var streams []stream
	for _, pair := range pairs {
		from, to, _ := strings.Cut(pair, " ")
		s := stream{name: from + " → " + to, from: place(from), to: place(to)}
		s.run = must(s.from.StartPing(t.Context(), s.to.Addr, 100*time.Millisecond))(t)
		streams = append(streams, s)
	}
	return streams
}
