package agent

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// way is a path as it is: what passes, and how often even that is lost.
type way struct {
	passes int
	loss   float64
	late   int // answers come that many ticks late
	r      *rand.Rand
	sent   int

	underway [][]int
}

// run lets p look at the way for a while and returns how long it took to know
// what passes; negative: it does not.
func (w *way) run(p *path, now *time.Time, limit time.Duration) time.Duration {
	began, found := *now, time.Duration(-1)
	for now.Sub(began) < limit {
		if len(w.underway) > w.late {
			for _, s := range w.underway[0] {
				p.Heard(s)
			}
			w.underway = w.underway[1:]
		}
		var answers []int
		if p.Due(*now) {
			for _, s := range p.Ask(*now) {
				w.sent++
				if s <= w.passes && w.r.Float64() >= w.loss {
					answers = append(answers, s)
				}
			}
		}
		if w.underway = append(w.underway, answers); w.late == 0 {
			for _, s := range answers {
				p.Heard(s)
			}
			w.underway = nil
		}
		*now = now.Add(pathTick)
		switch {
		case p.MTU() != w.best(p.top):
			found = -1
		case found < 0:
			found = now.Sub(began)
		}
	}
	return found
}

// best is the largest size that passes, in WireGuard's steps.
func (w *way) best(top int) int {
	if w.passes >= top {
		return top
	}
	return max(w.passes/pathStep*pathStep, pathLeast)
}

// Whatever passes is found, within seconds, and kept with one packet in five
// seconds.
func TestPathOfAnySize(t *testing.T) {
	for _, top := range []int{1420, 1413, 1320, 1280, 8920} {
		slowest, now := time.Duration(0), time.Now()
		for passes := pathSmall; passes <= top+50; passes++ {
			p, w := newPath(top), &way{passes: passes, r: rand.New(rand.NewPCG(1, 2))}
			took := w.run(p, &now, 30*time.Second)
			if took < 0 {
				t.Fatalf("%d of %d: came to %d, want %d", passes, top, p.MTU(), w.best(top))
			}
			slowest = max(slowest, took)
			before := w.sent
			w.run(p, &now, 100*time.Second)
			if rest := w.sent - before; passes >= pathLeast && (rest > 22 || rest < 18) {
				t.Fatalf("%d of %d: %d packets in 100 s at rest", passes, top, rest)
			}
		}
		t.Logf("up to %d: known within %s", top, slowest)
		if slowest > 8*time.Second { // a check and three rounds, of two seconds and a half at most
			t.Errorf("up to %d: it took %s", top, slowest)
		}
	}
}

// A path that shrinks is noticed, one that grows too, later; one that carries
// nothing for a while keeps what was known of it.
func TestPathThatChanges(t *testing.T) {
	now := time.Now()
	p, w := newPath(1420), &way{passes: 1500, r: rand.New(rand.NewPCG(1, 2))}
	w.run(p, &now, 30*time.Second)
	if p.MTU() != 1420 {
		t.Fatalf("at first %d", p.MTU())
	}
	for _, c := range []struct {
		passes int
		within time.Duration
	}{{1340, 10 * time.Second}, {1400, pathUp + 10*time.Second}, {1000, 10 * time.Second}, {9000, pathUp + 10*time.Second}} {
		w.passes = c.passes
		took := w.run(p, &now, pathUp+30*time.Second)
		if took < 0 || took > c.within {
			t.Errorf("to %d: known is %d, after %s", c.passes, p.MTU(), took)
		}
		t.Logf("to %d: known after %s", c.passes, took)
		before := p.MTU()
		w.passes = 0
		w.run(p, &now, 3*time.Minute)
		if p.MTU() != before {
			t.Errorf("nothing passed, and the MTU became %d", p.MTU())
		}
		w.passes = c.passes
		w.run(p, &now, 10*time.Second)
		if p.MTU() != before {
			t.Errorf("it passes again, and the MTU became %d", p.MTU())
		}
	}
}

// Packets that are lost for other reasons, or answered late, do not make a path
// small.
func TestPathThatLoses(t *testing.T) {
	for _, w := range []*way{{loss: 0.02}, {loss: 0.1}, {late: 1}, {late: 2}, {loss: 0.05, late: 2}} {
		t.Run(fmt.Sprintf("loss %g, %d ticks late", w.loss, w.late), func(t *testing.T) {
			w.r = rand.New(rand.NewPCG(3, 4))
			for _, passes := range []int{1500, 1340} {
				w.passes = passes
				now := time.Now()
				p := newPath(1420)
				w.run(p, &now, 30*time.Second)
				wrong := 0
				const hours = 2
				for range hours * 3600 / 5 {
					if w.run(p, &now, 5*time.Second) < 0 {
						wrong++
					}
				}
				share := float64(wrong) / (hours * 3600 / 5)
				t.Logf("%d passes: wrong %.2f%% of the time", passes, 100*share)
				if share > 0.05 {
					t.Errorf("wrong %.1f%% of the time", 100*share)
				}
			}
		})
	}
}
