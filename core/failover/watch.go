package failover

import "time"

const (
	// Interval is the time between two questions to one target.
	Interval = 100 * time.Millisecond
	// Window is how long the members' way must have been silent.
	Window = 600 * time.Millisecond
	// Grace is how long an answer may take on the members' way.
	Grace = 200 * time.Millisecond
	// Needed is how many questions must have been answered by way of the tunnel
	// alone, within Window.
	Needed = 4
)

// Way is one of the two ways that a question takes.
type Way uint8

const (
	// Members is the way of members' packets, through the serving gateway.
	Members Way = iota
	// Tunnel is the asking node's own link.
	Tunnel
)

// question is one question, put on both ways.
type question struct {
	asked    time.Time
	answered [2]bool
}

// Watch judges from questions and their answers whether the serving gateway
// serves. The zero Watch knows nothing. It is for one goroutine.
type Watch struct {
	// Alone watches the members' way without a tunnel of its own: a witness. What
	// it sees is worth less, since the fault may be at the other end.
	Alone bool

	questions map[uint64]*question
	next      uint64
	// heard is when the members' way was last known to work; zero: never.
	heard time.Time
}

// Ask notes a question and returns its number.
func (w *Watch) Ask(now time.Time) uint64 {
	if w.questions == nil {
		w.questions = map[uint64]*question{}
	}
	w.forget(now)
	w.next++
	w.questions[w.next] = &question{asked: now}
	return w.next
}

// Answer notes an answer to a question, by its number.
func (w *Watch) Answer(number uint64, way Way) {
	q := w.questions[number]
	if q == nil {
		return // too late to mean anything
	}
	q.answered[way] = true
	if way == Members && q.asked.After(w.heard) {
		w.heard = q.asked
	}
}

// Number is the number of the last question whose number ends in these 16 bits,
// which is what an echo request has room for.
func (w *Watch) Number(low uint16) uint64 {
	return w.next - uint64(uint16(w.next)-low)
}

// forget drops what is too old to count. A clock that jumps drops everything.
func (w *Watch) forget(now time.Time) {
	for n, q := range w.questions {
		if age := now.Sub(q.asked); age < 0 || age > Window+Grace+Interval {
			delete(w.questions, n)
		}
	}
}

// Fails tells whether the members' way has failed while it is not everything that
// has: no question of the last Window was answered there, though it worked before,
// and enough were answered by way of the tunnel.
func (w *Watch) Fails(now time.Time) bool {
	if w.heard.IsZero() || now.Sub(w.heard) < Window {
		return false
	}
	w.forget(now)
	evidence := 0
	var first, last time.Time
	for _, q := range w.questions {
		switch {
		case now.Sub(q.asked) < Grace: // may still be answered
		case !q.asked.After(w.heard): // before the last answer
		case q.answered[Tunnel] || w.Alone:
			evidence++
			if first.IsZero() || q.asked.Before(first) {
				first = q.asked
			}
			if q.asked.After(last) {
				last = q.asked
			}
		}
	}
	// Many questions of one moment are one sign.
	return evidence >= Needed && last.Sub(first) >= Window/3
}

// Heard is when a question was asked that the members' way answered; zero: never.
func (w *Watch) Heard() time.Time { return w.heard }

// Reset forgets everything: another gateway serves.
func (w *Watch) Reset() { *w = Watch{Alone: w.Alone, next: w.next} }
