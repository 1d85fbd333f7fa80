package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// ether answers probes to the addresses that are up.
type ether struct {
	mu     sync.Mutex
	up     map[netip.Addr]bool
	asked  map[netip.Addr]int
	opened map[netip.Addr]int
	closed int
}

func (e *ether) set(a netip.Addr, up bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.up[a] = up
}

// sockets is how many were opened in all, from how many of one address, asks
// how many probes an address got.
func (e *ether) sockets() int          { e.mu.Lock(); defer e.mu.Unlock(); return len(e.opened) }
func (e *ether) from(a netip.Addr) int { e.mu.Lock(); defer e.mu.Unlock(); return e.opened[a] }
func (e *ether) asks(a netip.Addr) int { e.mu.Lock(); defer e.mu.Unlock(); return e.asked[a] }

func (e *ether) open(from netip.Addr) (echo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opened[from]++
	return &etherSocket{ether: e, replies: make(chan [2]any, 100), done: make(chan struct{})}, nil
}

type etherSocket struct {
	*ether
	replies chan [2]any
	done    chan struct{}
	once    sync.Once
}

func (s *etherSocket) Send(to netip.Addr, seq uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[to]++
	if s.up[to] {
		s.replies <- [2]any{to, seq}
	}
	return nil
}

func (s *etherSocket) Receive() (netip.Addr, uint16, error) {
	select {
	case r := <-s.replies:
		return r[0].(netip.Addr), r[1].(uint16), nil
	case <-s.done:
		return netip.Addr{}, 0, errors.New("closed")
	}
}

func (s *etherSocket) Close() error {
	s.once.Do(func() {
		close(s.done)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed++
	})
	return nil
}

func TestProberTellsTransitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		west, north, me := netip.MustParseAddr("10.4.0.2"), netip.MustParseAddr("10.4.0.3"), netip.MustParseAddr("10.0.0.2")
		e := &ether{up: map[netip.Addr]bool{west: true}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}}
		var woken atomic.Int32
		p := newProber(e.open, func() { woken.Add(1) }, slog.New(slog.DiscardHandler))
		go func() { _ = p.Run(ctx) }()
		expect := func(when string, want map[string]bool, wakes int) {
			t.Helper()
			synctest.Wait()
			got := map[string]bool{}
			for at, live := range p.Live() {
				got[at.Location] = live
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: live %v, want %v", when, got, want)
			}
			if n := int(woken.Load()); n != wakes {
				t.Errorf("%s: woke the loop %d times in all, want %d", when, n, wakes)
			}
		}

		both := []target{{Place: place{Location: "west"}, To: west, From: me}, {Place: place{Location: "north"}, To: north, From: me}}
		// Without targets: no socket, no packet.
		time.Sleep(time.Hour)
		if e.sockets() != 0 {
			t.Error("opened a socket without a target")
		}

		p.Set(questions{targets: both})
		expect("asked once", map[string]bool{"west": true}, 1)
		time.Sleep(2500 * time.Millisecond)
		expect("three probes sent, the third not yet due", map[string]bool{"west": true}, 1)
		time.Sleep(time.Second)
		expect("three probes lost", map[string]bool{"west": true, "north": false}, 2)

		e.set(west, false)
		time.Sleep(2 * time.Second)
		expect("two probes lost", map[string]bool{"west": true, "north": false}, 2)
		time.Sleep(2 * time.Second)
		expect("west lost", map[string]bool{"west": false, "north": false}, 3)
		e.set(west, true)
		time.Sleep(1100 * time.Millisecond)
		expect("west is back", map[string]bool{"west": true, "north": false}, 4)

		// At rest in its state, it asks once a second and wakes nobody.
		before := e.asks(west)
		time.Sleep(time.Minute)
		expect("a minute later", map[string]bool{"west": true, "north": false}, 4)
		if n := e.asks(west) - before; n != 60 {
			t.Errorf("asked %d times in a minute, want 60", n)
		}

		// Setting what is set already starts nothing over.
		p.Set(questions{targets: both})
		expect("set again", map[string]bool{"west": true, "north": false}, 4)

		// No target any more: sockets are closed and knowledge is dropped.
		p.Set(questions{})
		time.Sleep(time.Second)
		expect("no targets", map[string]bool{}, 4)
		before = e.asks(west)
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if e.asks(west) != before || e.closed != 1 || e.from(me) != 1 {
			t.Errorf("without targets: %d more probes, %d sockets opened, %d closed", e.asks(west)-before, e.from(me), e.closed)
		}
	})
}

// A target that is not there yet when it is first asked is known soon after it
// is there, and one that stays away is not asked more than others for ever.
func TestFirstProbeIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		east, west, me := netip.MustParseAddr("10.4.0.1"), netip.MustParseAddr("10.4.0.2"), netip.MustParseAddr("10.0.0.2")
		e := &ether{up: map[netip.Addr]bool{}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}}
		p := newProber(e.open, func() {}, slog.New(slog.DiscardHandler))
		go func() { _ = p.Run(ctx) }()

		p.Set(questions{targets: []target{{Place: place{Node: "west"}, To: west, From: me}, {Place: place{Node: "east"}, To: east, From: me}}})
		time.Sleep(250 * time.Millisecond)
		e.set(west, true)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if !p.Live()[place{Node: "west"}] {
			t.Error("west is there for 100 ms and not known to be")
		}
		if n := e.asks(west); n != 4 {
			t.Errorf("west was asked %d times in 350 ms, want 4", n)
		}
		time.Sleep(600*time.Millisecond + 10*time.Second)
		synctest.Wait()
		if n := e.asks(west); n != 4+10 {
			t.Errorf("west, which answers, was asked %d times, want once a tick after its answer: 14", n)
		}
		if n := e.asks(east); n > 10+11 {
			t.Errorf("east, which does not answer, was asked %d times, want ten times in the first second and at most once a tick", n)
		}
		if live, known := p.Live()[place{Node: "east"}]; live || !known {
			t.Errorf("east is held for live=%t known=%t after 11 s of silence", live, known)
		}
	})
}

// Targets that come and go make no difference to one that stays.
func TestProbesKeepTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		west, me := netip.MustParseAddr("10.4.0.2"), netip.MustParseAddr("10.0.0.2")
		e := &ether{up: map[netip.Addr]bool{west: true}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}}
		p := newProber(e.open, func() {}, slog.New(slog.DiscardHandler))
		go func() { _ = p.Run(ctx) }()
		targets := []target{{Place: place{Node: "west"}, To: west, From: me}}
		p.Set(questions{targets: targets})
		time.Sleep(500 * time.Millisecond)
		e.set(west, false) // for less than three probes
		for i := range 5 {
			to := netip.AddrFrom4([4]byte{10, 4, 1, byte(i)})
			targets = append(targets, target{Place: place{Node: to.String()}, To: to, From: me})
			p.Set(questions{targets: targets})
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
			if e.asks(to) == 0 {
				t.Errorf("%s is a target for 300 ms and was not asked", to)
			}
		}
		if n := e.asks(west); n != 3 {
			t.Errorf("west was asked %d times in two seconds, want 3", n)
		}
		if !p.Live()[place{Node: "west"}] {
			t.Error("west is held for silent after one second")
		}
	})
}

// However many locations there are, a second has a bounded number of probes,
// and each location has its turn.
func TestProbesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		e := &ether{up: map[netip.Addr]bool{}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}}
		p := newProber(e.open, func() {}, slog.New(slog.DiscardHandler))
		go func() { _ = p.Run(ctx) }()
		var ts []target
		for i := range 3 * probesPerTick {
			to := netip.AddrFrom4([4]byte{10, 4, 1, byte(i)})
			ts = append(ts, target{Place: place{Location: to.String()}, To: to, From: netip.MustParseAddr("10.4.0.1")})
			e.set(to, true)
		}
		p.Set(questions{targets: ts})
		time.Sleep(29*time.Second + time.Second/2) // 30 ticks, the one at once included
		synctest.Wait()
		cancel()
		synctest.Wait()
		total := 0
		for _, target := range ts {
			total += e.asks(target.To)
		}
		if total != 30*probesPerTick {
			t.Errorf("%d probes in 30 ticks, want %d", total, 30*probesPerTick)
		}
		for _, target := range ts {
			if n := e.asks(target.To); n != 10 {
				t.Errorf("%s was asked %d times, want 10", target.To, n)
			}
		}
	})
}

// One that stays silent is asked less and less often, others and those whose
// silence is short as before. A handshake has it asked at once.
func TestSilenceIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		west, north, me := netip.MustParseAddr("10.4.0.2"), netip.MustParseAddr("10.4.0.3"), netip.MustParseAddr("10.4.0.1")
		e := &ether{up: map[netip.Addr]bool{north: true}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}}
		p := newProber(e.open, func() {}, slog.New(slog.DiscardHandler))
		go func() { _ = p.Run(ctx) }()
		q := questions{targets: []target{
			{Place: place{Location: "west"}, To: west, From: me, Peer: key("w1")},
			{Place: place{Location: "north"}, To: north, From: me, Peer: key("n1")},
		}}
		live := func() bool { synctest.Wait(); return p.Live()[place{Location: "west"}] }
		p.Set(q)
		time.Sleep(time.Minute + time.Second/2)
		w, n := e.asks(west), e.asks(north)
		time.Sleep(10 * time.Minute)
		if w, n = e.asks(west)-w, e.asks(north)-n; w != 600/probeRarest || n != 600 {
			t.Errorf("in ten minutes the silent one was asked %d times and the other %d; want %d and 600", w, n, 600/probeRarest)
		}

		// It comes back: known at the latest when it is its turn.
		e.set(west, true)
		time.Sleep(probeRarest * probeInterval)
		if !live() {
			t.Errorf("not known to be back after %d s", probeRarest)
		}
		w = e.asks(west)
		time.Sleep(time.Minute)
		if w = e.asks(west) - w; w != 60 {
			t.Errorf("back again, and asked %d times in a minute", w)
		}

		// A handshake tells sooner; should what is asked then be lost, the next
		// follow at the usual pace.
		e.set(west, false)
		time.Sleep(5 * time.Minute)
		w = e.asks(west)
		q.met = map[model.Key]time.Time{key("w1"): time.Now()}
		p.Set(q)
		time.Sleep(100 * time.Millisecond)
		if got := e.asks(west) - w; got != 1 {
			t.Errorf("%d probes right after a handshake, want 1", got)
		}
		e.set(west, true)
		time.Sleep(time.Second)
		if !live() {
			t.Error("not known to be back a second after a handshake")
		}
		// An old handshake is no news.
		e.set(west, false)
		time.Sleep(5 * time.Minute)
		w = e.asks(west)
		for range 10 {
			p.Set(q)
		}
		time.Sleep(100 * time.Millisecond)
		if got := e.asks(west) - w; got > 1 {
			t.Errorf("%d probes because of a handshake that was known", got)
		}
	})
}

// Answers that come late, twice, or to nobody's question.
func TestAnswers(t *testing.T) {
	a := answers{asked: 70000, answered: 69996}
	for _, step := range []struct {
		seq    uint16
		silent bool
	}{
		{uint16(69990 % 65536), true},  // older than what was answered already
		{uint16(69998 % 65536), false}, // late
		{uint16(69998 % 65536), false}, // twice
	} {
		a.heard(step.seq)
		if a.silent() != step.silent {
			t.Errorf("after the answer to %d: silent %v, want %v", step.seq, a.silent(), step.silent)
		}
	}
	if a.answered != 69998 {
		t.Errorf("last answered %d, want 69998", a.answered)
	}
	fresh := answers{asked: 2}
	fresh.heard(5)
	if fresh.answered != 0 {
		t.Errorf("a probe that was never sent counts as answered (%d)", fresh.answered)
	}
}
