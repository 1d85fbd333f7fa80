package agent

import (
	"slices"
	"time"
)

// A router between two gateways may drop packets that are too large for it and
// say nothing: TCP then hangs for ever, since nobody makes its segments smaller.
// So each node that has WireGuard peers asks them with packets of the tunnel's own
// size, and looks for the size that passes when these are not answered and small
// ones are. Routes carry the result, which clamps TCP and has the kernel tell
// senders (ICMP) what fits.

const (
	pathTick = 500 * time.Millisecond
	// pathKnock is how often a party without a session is sent a packet, which has
	// WireGuard try a handshake every five seconds for a minute and a half.
	pathKnock = time.Minute
	pathTries = 3               // of each size in one round, a tick apart
	pathEvery = 5 * time.Second // between rounds of a path that is known
	// pathUp is how often larger sizes are tried on a path that was too small for
	// them.
	pathUp = 10 * time.Minute
	// pathStep: WireGuard fills packets up to a multiple of 16 bytes.
	pathStep = 16
	// pathLeast is the smallest MTU that is looked for: what every host must take
	// (RFC 791).
	pathLeast = 576
	// pathSmall is the size of the packet that asks whether anything passes.
	pathSmall = 100
	// pathProbes is how many sizes one round tries.
	pathProbes = 8
)

// path finds out how large a packet, in bytes inside the tunnel, passes on one
// way. Ask says what to send, Heard takes the answers; there is no clock in it but
// the one that is handed in.
type path struct {
	top   int // what both tunnels allow
	known int // largest size that is known to pass; 0: nothing is known
	fails int // smallest size that is known not to pass; top+1: none

	// A round: the sizes that were asked for, those answered, for how many ticks.
	asked, heard []int
	ticks        int
	// searching: the round is one of several that close in on the size between
	// low, which passes, and high, which does not.
	searching bool
	low, high int

	next time.Time // when the next round is due
	up   time.Time // when larger sizes are due
}

func newPath(top int) *path { return &path{top: top, fails: top + 1} }

// MTU is the largest packet that passes; 0: not known.
func (p *path) MTU() int { return p.known }

// Due tells whether Ask would begin a round or go on with one.
func (p *path) Due(now time.Time) bool { return p.ticks > 0 || !now.Before(p.next) }

// Knock tells whether to send a packet to a party without a session. The first
// waits: a new peer is greeted in its time.
func (p *path) Knock(now time.Time) bool {
	due := !p.next.IsZero() && !now.Before(p.next)
	switch {
	case p.next.IsZero():
		p.next = now.Add(pathEvery)
	case due:
		p.next = now.Add(pathKnock)
	}
	return due
}

// Ask is called once a tick while Due. It returns the sizes to send now.
func (p *path) Ask(now time.Time) []int {
	// The last try of a round has two ticks to be answered, as the others have.
	tries := 1
	if p.searching {
		tries = pathTries
	}
	switch {
	case p.ticks == 0:
		p.check(now)
	case len(p.missing()) == 0 || p.ticks > tries:
		p.evaluate(now)
	default:
		p.ticks++
		if p.ticks > tries {
			return nil
		}
	}
	return p.missing()
}

// Heard takes an answer.
func (p *path) Heard(size int) {
	if slices.Contains(p.asked, size) && !slices.Contains(p.heard, size) {
		p.heard = append(p.heard, size)
	}
}

func (p *path) missing() []int {
	var out []int
	for _, s := range p.asked {
		if !slices.Contains(p.heard, s) {
			out = append(out, s)
		}
	}
	return out
}

// round begins one.
func (p *path) round(sizes ...int) { p.asked, p.heard, p.ticks = sizes, nil, 1 }

// rest ends the last one.
func (p *path) rest(now time.Time) {
	p.asked, p.heard, p.ticks, p.searching = nil, nil, 0, false
	p.next = now.Add(pathEvery)
}

// check asks whether what passed still does, and now and then whether more does.
func (p *path) check(now time.Time) {
	switch {
	case p.known == 0:
		p.round(p.top)
	case p.known < p.top && !now.Before(p.up):
		p.up = now.Add(pathUp)
		p.round(p.known, p.fails, p.top)
	default:
		p.round(p.known)
	}
}

// search closes in on what passes between low, 0 at first, and high. A size that
// is known to pass is always among those asked for: without an answer to that one
// the others say nothing.
func (p *path) search(low, high int) {
	p.searching, p.low, p.high = true, low, high
	p.round(append(p.between(low, high), max(low, pathSmall))...)
}

// between spreads a few sizes over those between low and high, the largest among
// them; none where there is nothing left to try.
func (p *path) between(low, high int) []int {
	var all []int
	for s := max(low+1, pathLeast); s < high; s++ {
		if s%pathStep == 0 || s == p.top {
			all = append(all, s)
		}
	}
	if len(all) <= pathProbes {
		return all
	}
	out := make([]int, pathProbes)
	for i := range out {
		out[i] = all[(i+1)*len(all)/pathProbes-1]
	}
	return out
}

// evaluate ends a round, and begins another where there is more to find out.
func (p *path) evaluate(now time.Time) {
	largest := 0
	if len(p.heard) > 0 {
		largest = slices.Max(p.heard)
	}
	if !p.searching {
		switch expected := p.asked[0]; {
		case !slices.Contains(p.heard, expected):
			// It may only be lost: it is among those that are tried now.
			p.search(0, p.fails)
		case largest > expected:
			p.known = largest
			p.close(largest, p.top+1, now)
		default:
			p.known = expected
			p.rest(now)
		}
		return
	}
	if !slices.Contains(p.heard, max(p.low, pathSmall)) {
		p.rest(now) // nothing passes at the moment, of whatever size
		return
	}
	low, high := max(p.low, largest), p.high
	for _, s := range p.missing() {
		if s > low {
			high = min(high, s)
		}
	}
	p.close(low, high, now)
}

// close goes on with a search, or ends it where nothing is left to try.
func (p *path) close(low, high int, now time.Time) {
	if low >= pathLeast {
		p.known = low // better at once than exact
	}
	if len(p.between(low, high)) > 0 {
		p.search(low, high)
		return
	}
	p.known, p.fails = max(low, pathLeast), high
	p.up = now.Add(pathUp)
	p.rest(now)
}
