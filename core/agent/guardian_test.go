package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// country is what guardians of several nodes speak over: every address leads to
// its node, and every pod is reached.
type country struct {
	snapshot model.Snapshot
	began    time.Time

	mu    sync.Mutex
	boxes map[netip.Addr]*countryBox
	deaf  map[string]bool // nodes that get no datagrams
	heard []string        // nodes, in the order in which they began to follow another gateway
	ready []string        // nodes, in the order in which they made ready for another gateway
	last  map[string]string
	nodes map[string]*guardian
}

type countryBox struct {
	country *country
	node    string
	mails   chan mail
	done    chan struct{}
	once    sync.Once
}

func (b *countryBox) Send(from, to netip.Addr, payload []byte) error {
	b.country.mu.Lock()
	defer b.country.mu.Unlock()
	if there := b.country.boxes[to]; there != nil && !b.country.deaf[there.node] && !b.country.deaf[b.node] {
		select {
		case there.mails <- mail{from, bytes.Clone(payload)}:
		default:
		}
	}
	return nil
}

func (b *countryBox) Receive() (mail, error) {
	select {
	case m := <-b.mails:
		return m, nil
	case <-b.done:
		return mail{}, errors.New("closed")
	}
}

func (b *countryBox) Close() error { b.once.Do(func() { close(b.done) }); return nil }

// settle starts a guardian on every node of s, until the test ends.
func settleCountry(t *testing.T, s model.Snapshot) *country {
	c := &country{snapshot: s, began: time.Now(), boxes: map[netip.Addr]*countryBox{}, deaf: map[string]bool{}, last: map[string]string{}, nodes: map[string]*guardian{}}
	everywhere := &ether{up: map[netip.Addr]bool{}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}}
	for i := range s.Nodes {
		n := s.Nodes[i]
		box := &countryBox{country: c, node: n.Name, mails: make(chan mail, 100), done: make(chan struct{})}
		for _, a := range n.WireGuardIPs {
			c.boxes[a], everywhere.up[a] = box, true
		}
		for _, p := range n.InternalIPs {
			c.boxes[p.Addr()], everywhere.up[p.Addr()] = box, true
		}
		secret := func(k model.Key) (failover.Secret, error) {
			both := [][]byte{n.Key[:], k[:]}
			slices.SortFunc(both, bytes.Compare)
			return sha256.Sum256(bytes.Join(both, nil)), nil
		}
		c.nodes[n.Name] = newGuardian(n.Name, secret, func() (mailbox, error) { return box, nil }, everywhere.open,
			func() { go c.pass(n.Name) }, func(*failover.Book) error { return nil }, slog.New(slog.DiscardHandler))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for name, g := range c.nodes {
		c.pass(name)
		running.Go(func() { _ = g.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		for _, b := range c.boxes {
			_ = b.Close()
		}
		running.Wait()
	})
	return c
}

// pass is what an agent's pass does for its guardian, a moment after it was woken.
func (c *country) pass(name string) {
	time.Sleep(settle)
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.nodes[name]
	s := g.Apply(c.snapshot)
	locations := plan.Locations(s)
	east := locations[slices.IndexFunc(locations, func(l plan.Location) bool { return l.Name == "east" })]
	if before := c.last[name]; before != "" && before != east.Gateway.Name {
		c.heard = append(c.heard, name)
	}
	c.last[name] = east.Gateway.Name
	for _, n := range s.Nodes {
		if n.Next && !slices.Contains(c.ready, name+" for "+n.Name) {
			c.ready = append(c.ready, name+" for "+n.Name)
		}
	}
	g.Set(dutyOf(s, locations, name))
}

// follows are the nodes that follow another gateway than at first, as they began to.
func (c *country) follows() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.heard)
}

// made are the nodes that made ready for another gateway.
func (c *country) made() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ready)
}

// comes waits until a node that was asked to serve does, and returns how long.
func (c *country) comes(t *testing.T, name string) time.Duration {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
		if c.nodes[name].Spreading() {
			return time.Since(began)
		}
	}
	t.Fatalf("%s does not serve", name)
	return 0
}

// armedEast has a location east of a gateway e1, e2 that stands by and a member,
// and west of a gateway.
func armedEast() model.Snapshot {
	e1, e2, e3, w1 := e1(), e2(), e2(), w1()
	e1.Slot, w1.Slot = 1, 1
	e2.Slot, e2.WireGuardIPs = 2, addrs("10.4.0.3")
	e3.Name, e3.UID, e3.Key, e3.InternalIPs, e3.PodPrefixes = "e3", "33", key("e3"), prefixes("10.0.0.3/24"), prefixes("10.244.3.0/24")
	return snapshot(e1, e2, e3, w1)
}

// Who takes over from a gateway that works has the other locations send it its own
// first, and tells its own location next: what comes in by their networks has to
// have its way back there.
func TestTakingOverFromTheInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settleCountry(t, armedEast())
		time.Sleep(time.Second)
		e2 := c.nodes["e2"]
		e2.Serve(2)
		took := c.comes(t, "e2")
		if got := c.made(); !slices.Equal(got, []string{"w1 for e2"}) || len(c.follows()) > 0 {
			t.Errorf("when e2 begins to serve %v made ready and %v follow; want w1 alone to have", got, c.follows())
		}
		if took < settle+passing || took >= comingMost {
			t.Errorf("e2 serves after %s, want what w1 takes and %s", took, passing)
		}
		time.Sleep(announceFast + failover.Interval)
		if e2.Spreading() {
			t.Error("all of the location know, and the Node object is still held back")
		}
		time.Sleep(time.Second)
		got := c.follows()
		if !slices.Equal(got, []string{"e2", "e3", "e1", "w1"}) {
			t.Errorf("nodes follow e2 in the order %v; want itself, the member, the gateway before, and the other location", got)
		}
		// Again, and for something that is over.
		e2.Serve(2)
		c.nodes["e3"].Serve(9) // it does not stand by
		time.Sleep(time.Second)
		if n := len(c.follows()); n != 4 {
			t.Errorf("%d changes, want 4", n)
		}
	})
}

// A member that does not hear holds the others up for a moment only.
func TestTakingOverWithADeafMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settleCountry(t, armedEast())
		c.deaf["e3"] = true
		time.Sleep(time.Second)
		c.nodes["e2"].Serve(2)
		c.comes(t, "e2")
		time.Sleep(innerMost - 50*time.Millisecond)
		if got := c.follows(); !slices.Equal(got, []string{"e2"}) {
			t.Errorf("%v follow, want e2", got)
		}
		time.Sleep(50*time.Millisecond + 3*failover.Interval + 3*settle)
		if got := c.follows(); !slices.Equal(got, []string{"e2", "e1", "w1"}) {
			t.Errorf("%v follow, want e2, then e1, then w1 as well", got)
		}
		c.mu.Lock()
		c.deaf["e3"] = false
		c.mu.Unlock()
		time.Sleep(2 * announceSlow)
		if got := c.follows(); len(got) != 4 {
			t.Errorf("%v follow, want all", got)
		}
	})
}

// Another location that does not get ready holds a change up for a moment only, and
// one that got ready for a node that then does not serve goes back.
func TestTakingOverUnprepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settleCountry(t, armedEast())
		c.deaf["w1"] = true
		time.Sleep(time.Second)
		c.nodes["e2"].Serve(2)
		if took := c.comes(t, "e2"); took < comingMost || took > comingMost+failover.Interval {
			t.Errorf("e2 serves after %s, want %s", took, comingMost)
		}
		time.Sleep(time.Second)
		if got := c.follows(); len(got) != 3 || slices.Contains(got, "w1") {
			t.Errorf("%v follow, want all of east", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := settleCountry(t, armedEast())
		time.Sleep(time.Second)
		say := func(from, location string, claim failover.Claim) {
			g, n := c.nodes[from], c.snapshot.Node(from)
			msg := failover.Message{Kind: failover.Next, From: from, To: "w1", Location: location, Claim: claim}
			secret, _ := g.secret(key("w1"))
			payload, _ := msg.Seal(secret, n.Key, key("w1"))
			_ = c.boxes[n.WireGuardIPs[0]].Send(n.WireGuardIPs[0], netip.MustParseAddr("10.4.0.2"), payload)
			time.Sleep(2 * settle)
		}
		next := func() bool {
			s := c.nodes["w1"].Apply(c.snapshot)
			return slices.ContainsFunc(s.Nodes, func(n model.Node) bool { return n.Next })
		}
		say("e2", "east", failover.Claim{Node: "e1", Epoch: 2})    // nobody speaks for another
		say("e2", "west", failover.Claim{Node: "e2", Epoch: 2})    // nor for another location
		say("e2", "east", failover.Claim{Node: "e2", Epoch: 1000}) // nor uses the numbers up
		if next() {
			t.Error("w1 believes what it must not")
		}
		say("e2", "east", failover.Claim{Node: "e2", Epoch: 2})
		if !next() {
			t.Error("w1 does not get ready")
		}
		time.Sleep(comingFor + failover.Interval)
		if next() {
			t.Errorf("w1 is still ready for e2 after %s", comingFor)
		}
		if got := c.follows(); len(got) > 0 {
			t.Errorf("%v follow another gateway", got)
		}
	})
}

// A gateway that ends has another one serve first.
func TestLeaving(t *testing.T) {
	leave := func(c *country, name string) time.Duration {
		began := time.Now()
		c.nodes[name].Leave(context.Background())
		return time.Since(began)
	}
	t.Run("another one stands by", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := settleCountry(t, armedEast())
			time.Sleep(time.Second)
			took := leave(c, "e1")
			if got := c.follows(); len(got) != 4 || took < leaveAfter || took > leaveAfter+time.Second {
				t.Errorf("after %s %v follow e2, want all four", took, got)
			}
			// Whoever does not serve has nobody to look for.
			if took := leave(c, "e1"); took > 2*failover.Interval {
				t.Errorf("a member took %s to leave", took)
			}
		})
	})
	t.Run("nobody hears", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := settleCountry(t, armedEast())
			c.deaf["e2"] = true
			time.Sleep(time.Second)
			if took := leave(c, "e1"); took < leaveMost || took > leaveMost+time.Second || len(c.follows()) != 0 {
				t.Errorf("took %s, %v follow another; want %s and nobody", took, c.follows(), leaveMost)
			}
		})
	})
	t.Run("nobody stands by", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := armedEast()
			s.Node("e2").Slot = 0
			c := settleCountry(t, s)
			time.Sleep(time.Second)
			if took := leave(c, "e1"); took > 2*failover.Interval {
				t.Errorf("took %s to find nobody", took)
			}
		})
	})
	t.Run("a member cannot send its gateway away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := settleCountry(t, armedEast())
			time.Sleep(time.Second)
			e3 := c.nodes["e3"]
			d := dutyOf(c.snapshot, plan.Locations(c.snapshot), "e3")
			i := slices.IndexFunc(d.tell, func(l listener) bool { return l.Node.Name == "e2" })
			for range 20 {
				for _, m := range []failover.Claim{{Node: "e3", Epoch: 1}, {Node: "e1", Epoch: 1}} {
					msg := failover.Message{Kind: failover.Yield, From: "e3", To: "e2", Location: "east", Claim: m, Nonce: c.nodes["e2"].nonce}
					secret, _ := e3.secret(key("e2"))
					payload, _ := msg.Seal(secret, key("e3"), key("e2"))
					_ = c.boxes[netip.MustParseAddr("10.0.0.3")].Send(d.tell[i].From, d.tell[i].To, payload)
				}
				time.Sleep(50 * time.Millisecond)
			}
			if got := c.follows(); len(got) != 0 {
				t.Errorf("%v follow another gateway", got)
			}
		})
	})
}
