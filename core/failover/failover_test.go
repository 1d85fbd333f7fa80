package failover

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// world answers questions as a mesh would: a way that works answers after delay,
// one that is down never.
type world struct {
	w      Watch
	now    time.Time
	due    []due
	failed time.Time // when Fails first said so
}

type due struct {
	at     time.Time
	number uint64
	way    Way
}

// run asks every Interval, as long as it takes; up says which ways work.
func (x *world) run(d time.Duration, delay time.Duration, up func(Way) bool) {
	for end := x.now.Add(d); x.now.Before(end); x.now = x.now.Add(10 * time.Millisecond) {
		for i := 0; i < len(x.due); i++ {
			if !x.due[i].at.After(x.now) {
				x.w.Answer(x.due[i].number, x.due[i].way)
				x.due = append(x.due[:i], x.due[i+1:]...)
				i--
			}
		}
		if x.now.UnixMilli()%Interval.Milliseconds() != 0 {
			continue
		}
		n := x.w.Ask(x.now)
		for _, way := range []Way{Members, Tunnel} {
			if up(way) {
				x.due = append(x.due, due{x.now.Add(delay), n, way})
			}
		}
		if x.failed.IsZero() && x.w.Fails(x.now) {
			x.failed = x.now
		}
	}
}

func both(Way) bool         { return true }
func neither(Way) bool      { return false }
func tunnelOnly(w Way) bool { return w == Tunnel }

func start() *world { return &world{now: time.UnixMilli(1_000_000)} }

// TC15: a gateway through which nothing passes is replaced, however ready it is called.
func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name  string
		play  func(*world) (broken time.Time)
		fails bool
	}{
		{"all is well", func(x *world) time.Time { x.run(10*time.Second, 30*time.Millisecond, both); return time.Time{} }, false},
		{"the members' way breaks", func(x *world) time.Time {
			x.run(2*time.Second, 30*time.Millisecond, both)
			at := x.now
			x.run(2*time.Second, 30*time.Millisecond, tunnelOnly)
			return at
		}, true},
		{"everything breaks", func(x *world) time.Time {
			x.run(2*time.Second, 30*time.Millisecond, both)
			x.run(10*time.Second, 30*time.Millisecond, neither)
			return time.Time{}
		}, false},
		{"it never worked", func(x *world) time.Time {
			x.run(10*time.Second, 30*time.Millisecond, tunnelOnly)
			return time.Time{}
		}, false},
		{"a breath too long", func(x *world) time.Time {
			x.run(2*time.Second, 30*time.Millisecond, both)
			x.run(400*time.Millisecond, 30*time.Millisecond, tunnelOnly)
			x.run(5*time.Second, 30*time.Millisecond, both)
			return time.Time{}
		}, false},
		{"slow, both ways", func(x *world) time.Time {
			x.run(5*time.Second, 150*time.Millisecond, both)
			return time.Time{}
		}, false},
		{"the asking node was stopped for a minute", func(x *world) time.Time {
			x.run(2*time.Second, 30*time.Millisecond, both)
			x.now = x.now.Add(time.Minute)
			x.run(5*time.Second, 30*time.Millisecond, both)
			return time.Time{}
		}, false},
		{"its clock was set back", func(x *world) time.Time {
			x.run(2*time.Second, 30*time.Millisecond, both)
			x.now = x.now.Add(-time.Hour)
			x.run(5*time.Second, 30*time.Millisecond, both)
			return time.Time{}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := start()
			broken := c.play(x)
			if x.failed.IsZero() == c.fails {
				t.Fatalf("failed at %v, want a failure: %v", x.failed, c.fails)
			}
			if took := x.failed.Sub(broken); c.fails && took > Window+2*Interval {
				t.Errorf("noticed after %s", took)
			}
		})
	}
}

// A witness has no tunnel of its own to compare with.
func TestWitness(t *testing.T) {
	x := start()
	x.w.Alone = true
	x.run(2*time.Second, 30*time.Millisecond, func(w Way) bool { return w == Members })
	x.run(2*time.Second, 30*time.Millisecond, neither)
	if x.failed.IsZero() {
		t.Error("the witness sees nothing")
	}
}

func TestNumberOfSixteenBits(t *testing.T) {
	var w Watch
	now := time.UnixMilli(0)
	var last uint64
	for range 70_000 {
		last = w.Ask(now)
		now = now.Add(Interval)
	}
	for back := range uint64(5) {
		if got := w.Number(uint16(last - back)); got != last-back {
			t.Errorf("question %d is taken for %d", last-back, got)
		}
	}
}

func TestElection(t *testing.T) {
	voters := func(n, witnesses int) (out []Voter) {
		for i := range n {
			out = append(out, Voter{Name: fmt.Sprint(i), Witness: i < witnesses})
		}
		return out
	}
	for _, c := range []struct {
		name         string
		voters       []Voter
		acks, concur int
		won          bool
	}{
		{"nobody answers", voters(3, 2), 0, 0, false},
		{"half is not most", voters(4, 2), 2, 2, false},
		{"most, and a witness concurs", voters(3, 2), 2, 1, true},
		{"most, and no witness concurs", voters(3, 2), 3, 0, false},
		{"one voter, who is the witness", voters(1, 1), 1, 1, true},
		{"voters without a witness", voters(1, 0), 1, 0, true},
		{"nobody to ask", nil, 0, 0, true},
	} {
		now := time.UnixMilli(0)
		e := NewElection(2, c.voters, now)
		e.Ack("a stranger", true)
		for i := range c.acks {
			e.Ack(fmt.Sprint(i), i < c.concur)
		}
		if e.Won() != c.won {
			t.Errorf("%s: won is %v", c.name, e.Won())
		}
		if e.Over(now) || !e.Over(now.Add(AskFor)) {
			t.Errorf("%s: over at the wrong time", c.name)
		}
	}
}

func TestAlone(t *testing.T) {
	for _, c := range []struct{ neighbour, tunnel, takes bool }{
		{false, false, true}, // gone
		{true, true, true},   // there, and does not forward
		{true, false, true},
		{false, true, false}, // cut off from each other
	} {
		if Alone(c.neighbour, c.tunnel) != c.takes {
			t.Errorf("neighbour %v, tunnel %v: want %v", c.neighbour, c.tunnel, c.takes)
		}
	}
}

func snapshot() *model.Snapshot {
	s := &model.Snapshot{Nodes: []model.Node{
		{Name: "a1", Spoken: true, Location: "a", Slot: 1, Epoch: 4},
		{Name: "a2", Spoken: true, Location: "a", Slot: 2},
		{Name: "a3", Spoken: true, Location: "a"},
		{Name: "b1", Spoken: true, Location: "b", Slot: 1, Epoch: 1},
	}}
	s.Sort()
	return s
}

func TestBook(t *testing.T) {
	for _, c := range []struct {
		name, location, node string
		epoch                uint64
		news                 bool
		why                  string
	}{
		{"the next epoch", "a", "a2", 5, true, ""},
		{"an old one", "a", "a2", 3, false, ""},
		{"what is known", "a", "a1", 4, false, ""},
		{"the same epoch, a higher name", "a", "a2", 4, false, ""},
		{"another location's node", "a", "b1", 5, false, "not one of its nodes"},
		{"nobody we know", "a", "a9", 5, false, "not one of its nodes"},
		{"one that does not stand by", "a", "a3", 5, false, "does not stand by"},
		{"all numbers at once", "a", "a2", 1 << 60, false, "known is 4"},
	} {
		var b Book
		s := snapshot()
		news, err := b.Hear(s, c.location, Claim{c.node, c.epoch})
		if news != c.news || (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: news %v, error %v", c.name, news, err)
		}
		after := b.Apply(*s)
		if got := after.Node(c.node); c.news && got.Epoch != c.epoch {
			t.Errorf("%s: %s has epoch %d", c.name, c.node, got.Epoch)
		}
		if s.Node("a2").Epoch != 0 {
			t.Errorf("%s: the snapshot was changed", c.name)
		}
	}
}

// Who is about to serve is marked until it does, or until it is not believed any
// more; nobody else is believed than with a claim.
func TestBookExpects(t *testing.T) {
	began := time.Unix(1000, 0)
	node := func(b *Book, s *model.Snapshot) *model.Node { after := b.Apply(*s); return after.Node("a2") }
	next := func(b *Book) bool { return node(b, snapshot()).Next }
	for _, c := range []Claim{{"a1", 4}, {"a3", 5}, {"b1", 5}, {"a2", 3}, {"a2", 1 << 60}} {
		var b Book
		if news, _ := b.Expect(snapshot(), "a", c, began.Add(time.Second)); news || next(&b) {
			t.Errorf("%+v is believed", c)
		}
	}
	expecting := func() *Book {
		b := &Book{}
		for i, want := range []bool{true, false} {
			if news, err := b.Expect(snapshot(), "a", Claim{"a2", 5}, began.Add(time.Second)); news != want || err != nil || !next(b) {
				t.Fatalf("the %d. time: news %v, error %v, next %v", i+1, news, err, next(b))
			}
		}
		return b
	}
	b := expecting()
	if s := snapshot(); node(b, s).Epoch != 0 || s.Node("a2").Next {
		t.Error("it serves before its claim, or the snapshot was changed")
	}
	if b.Forget(began.Add(999*time.Millisecond), time.Second) || !next(b) {
		t.Error("forgotten too early")
	}
	if !b.Forget(began.Add(time.Second), time.Second) || next(b) {
		t.Error("not forgotten")
	}
	if b = expecting(); !b.Forget(began.Add(-time.Hour), time.Second) || next(b) {
		t.Error("a clock that was set back keeps it for an hour")
	}
	b = expecting()
	if _, err := b.Hear(snapshot(), "a", Claim{"a2", 5}); err != nil || next(b) {
		t.Errorf("it serves, and is still about to (%v)", err)
	}
}

// A Node that was made anew does not set the location back, and neither does a
// restart of the agent.
func TestBookOutlivesWhatWasPublished(t *testing.T) {
	var b Book
	if news, err := b.Hear(snapshot(), "a", Claim{"a2", 5}); !news || err != nil {
		t.Fatal(news, err)
	}
	raw, err := json.Marshal(&b)
	if err != nil {
		t.Fatal(err)
	}
	var again Book
	if err := json.Unmarshal(raw, &again); err != nil {
		t.Fatal(err)
	}
	s := snapshot()
	s.Node("a1").Epoch = 0
	if got := again.Of(s, "a"); got != (Claim{"a2", 5}) {
		t.Errorf("location a is served by %v", got)
	}
	if news, _ := again.Hear(s, "a", Claim{"a1", 1}); news {
		t.Error("an old claim is news")
	}
}

func TestMessage(t *testing.T) {
	secret := Secret(bytes.Repeat([]byte{7}, 32))
	from, to := model.Key{1}, model.Key{2}
	m := Message{Kind: Says, From: "a2", To: "a3", Location: "a", Claim: Claim{"a2", 5}, Nonce: 9, Own: 8}
	sealed, err := m.Seal(secret, from, to)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Open(sealed, secret, from, to); err != nil || got != m {
		t.Fatalf("%+v, %v", got, err)
	}
	if who, err := Sender(sealed); who != "a2" || err != nil {
		t.Errorf("sender %q, %v", who, err)
	}
	other := secret
	other[0]++
	for name, open := range map[string]func() error{
		"another secret":   func() error { _, err := Open(sealed, other, from, to); return err },
		"another sender":   func() error { _, err := Open(sealed, secret, to, to); return err },
		"another receiver": func() error { _, err := Open(sealed, secret, from, from); return err },
		"one bit": func() error {
			c := bytes.Clone(sealed)
			c[len(c)-3] ^= 1
			_, err := Open(c, secret, from, to)
			return err
		},
		"short": func() error { _, err := Open(sealed[:20], secret, from, to); return err },
	} {
		if open() == nil {
			t.Errorf("%s: believed", name)
		}
	}
	m.Location = strings.Repeat("x", MaxMessage)
	if _, err := m.Seal(secret, from, to); err == nil {
		t.Error("a message that no datagram holds was sealed")
	}
	if text := fmt.Sprintf("%v %+v %#v %s", secret, secret, secret, struct{ S Secret }{secret}); strings.Contains(text, "7") {
		t.Errorf("a secret is printed: %s", text)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"kind":"says"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, _ = Sender(raw)
		if _, err := Open(raw, Secret{}, model.Key{}, model.Key{}); err == nil {
			t.Error("a forged message was believed")
		}
	})
}

// Whatever the file of a Book holds, somebody can still take over.
func FuzzBook(f *testing.F) {
	for _, seed := range []string{`{"a":{"node":"a2","epoch":5}}`, `{"a":{"node":"a2","epoch":18446744073709551615}}`, `null`, `{"a":null}`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b Book
		_ = json.Unmarshal(raw, &b)
		s := snapshot()
		next := Claim{"a2", b.Of(s, "a").Epoch + 1}
		if news, err := b.Hear(s, "a", next); !news || err != nil {
			t.Fatalf("after %s, %v is not believed: %v", raw, next, err)
		}
		after := b.Apply(*s)
		if got := b.Of(&after, "a"); got != next {
			t.Fatalf("location a is served by %v, want %v", got, next)
		}
	})
}
