package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// conversation is one TCP connection over which a question goes every 100 ms and
// is answered. It ends with an error or when it is stopped.
type conversation struct {
	name string
	conn net.Conn
	stop context.CancelFunc
	done chan struct{}

	heard atomic.Int64 // when the last answer came, in ns since 1970

	// After done.
	over    time.Time
	answers int
	longest time.Duration // that an answer took
	err     error         // nil: stopped while it went on
}

// converse opens a connection from a place to where an echo answers.
func converse(t *testing.T, name string, from *lab.Place, to netip.AddrPort) *conversation {
	t.Helper()
	var conn net.Conn
	eventually(t, soon, func() (err error) { // kube-proxy learns of it
		conn, err = from.Dial(t.Context(), "tcp", to.String())
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	c := &conversation{name: name, conn: conn, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer func() { c.over = time.Now() }()
		defer conn.Close()
		in := bufio.NewReader(conn)
		for ctx.Err() == nil {
			asked := time.Now()
			if c.err = ask(conn, in); c.err != nil {
				return
			}
			c.answers++
			c.heard.Store(time.Now().UnixNano())
			c.longest = max(c.longest, time.Since(asked))
			time.Sleep(100 * time.Millisecond)
		}
	}()
	t.Cleanup(cancel)
	return c
}

func ask(conn net.Conn, in *bufio.Reader) error {
	if _, err := fmt.Fprintf(conn, "GET /name HTTP/1.1\r\nHost: echo\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = bufio.NewReader(resp.Body).ReadString('\n')
	return err
}

// goOnOrWereReset wants each conversation to have an answer within limit, or to have
// been ended by a reset, which tells the program at once, and ends them.
func goOnOrWereReset(t *testing.T, talk []*conversation, limit time.Duration) {
	t.Helper()
	since := time.Now().UnixNano()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if !slices.ContainsFunc(talk, func(c *conversation) bool { return c.heard.Load() <= since && !c.ended() }) {
			break
		}
	}
	for _, c := range talk {
		c.judge(t, c.heard.Load() > since)
	}
}

func (c *conversation) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// silence is how long nothing was heard before the end. After done.
func (c *conversation) silence() time.Duration { return c.over.Sub(time.Unix(0, c.heard.Load())) }

// judge ends it, and says how it fared.
func (c *conversation) judge(t *testing.T, goesOn bool) {
	t.Helper()
	ended := c.ended()
	c.stop()
	_ = c.conn.SetDeadline(time.Now())
	<-c.done
	switch {
	case goesOn && !ended:
		t.Logf("%s: goes on, %d answers, the longest after %s", c.name, c.answers, c.longest.Round(time.Millisecond))
	case ended && errors.Is(c.err, unix.ECONNRESET):
		t.Logf("%s: reset after %d answers, %s after the last", c.name, c.answers, c.silence().Round(time.Millisecond))
	default:
		t.Errorf("%s: after %d answers, the longest after %s: %v", c.name, c.answers, c.longest.Round(time.Millisecond), c.err)
	}
}

// conversations are those between locations a and b of the default lab that take
// different ways through address translation: from pods and nodes, on a member and
// on a1, with its public leg, to a pod, a ClusterIP of a pod and one of a process
// on a node; and from b to a.
func conversations(t *testing.T, l *lab.Lab, services map[string]netip.AddrPort) []*conversation {
	t.Helper()
	var all []*conversation
	for _, from := range []*lab.Place{&l.Pod("a3").Place, &l.Machine("a3").Place, &l.Pod("a1").Place, &l.Machine("a1").Place} {
		for name, to := range services {
			all = append(all, converse(t, from.Name+" → "+name, from, to))
		}
	}
	back := l.Pod("a3")
	return append(all, converse(t, "pod-b2 → "+back.Name, &l.Pod("b2").Place, netip.AddrPortFrom(back.Addr, lab.EchoPort)))
}

// conversationTargets makes the Services that conversations speak to. After a long
// silence TCP tries again after as long a pause, and gives up after a number of
// tries; here, after two seconds at most and never, so that the silence is ours.
func conversationTargets(t *testing.T, l *lab.Lab) map[string]netip.AddrPort {
	t.Helper()
	pod, node := l.Pod("b2"), l.Machine("b2")
	ok(t, node.StartEcho(t.Context()))
	for _, p := range []*lab.Place{&pod.Place, &node.Place, &l.Pod("a3").Place, &l.Machine("a3").Place, &l.Pod("a1").Place, &l.Machine("a1").Place} {
		must(p.Shell(t.Context(), "echo 2000 >/proc/sys/net/ipv4/tcp_rto_max_ms; echo 255 >/proc/sys/net/ipv4/tcp_retries2"))(t)
	}
	return map[string]netip.AddrPort{
		"pod":                 netip.AddrPortFrom(pod.Addr, lab.EchoPort),
		"service of a pod":    must(l.Expose(t.Context(), "talk-"+pod.Name, pod))(t),
		"service of a node's": must(l.ExposeAddress(t.Context(), "talk-node-"+node.Name, netip.AddrPortFrom(node.Addr, lab.EchoPort)))(t),
	}
}
