package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

const (
	probeInterval = time.Second
	// probesLost unanswered probes in a row make a location silent.
	probesLost = 3
	// probesPerTick bounds what one tick sends, whatever the cluster's size;
	// with more targets each has its turn less often.
	probesPerTick = 50
	// repeatInterval is after how long the first probe to a target is repeated,
	// with the same number, as often as the tick's bound leaves room. Whether
	// a new tunnel answers is known about when it does, and so the two ends of a
	// link that comes up move to it at almost the same moment.
	repeatInterval = 100 * time.Millisecond
	// probesPatient unanswered probes in a row are sent at the usual pace. Then the
	// pause doubles, up to probeRarest ticks: what is sent to a party without a
	// session waits in the device of the gateway, in a large buffer, and one such
	// packet is as good as many. It keeps WireGuard knocking every five seconds,
	// and goes out, and is answered, when a handshake succeeds.
	probesPatient = 10
	probeRarest   = 8
)

// target is a location, or a node with a link of its own, to ask through the
// tunnel whether it is there.
type target struct {
	Place place
	// To is the WireGuard address of the location's serving gateway, or of the node.
	To netip.Addr
	// From is this node's own address to ask from.
	From netip.Addr
	// Peer is the WireGuard peer here over which To is reached; zero: another
	// node's device leads there.
	Peer model.Key
}

// place is what answers or does not: a location as a whole, by way of the
// gateways, or one node over the link with it.
type place struct{ Location, Node string }

func (p place) String() string {
	if p.Node != "" {
		return "node " + p.Node
	}
	return fmt.Sprintf("location %q", p.Location)
}

// answers is what is known of one target. It counts the probes rather than
// reading a clock: a host that was suspended has not thereby lost a location.
type answers struct {
	asked, answered uint64 // number of the last probe sent, and of the last answered
	due             uint64 // the tick at which to ask next
	// met is when there was a handshake last, and anew the number of the last probe
	// before it: those that it lost say nothing about the new session.
	met  time.Time
	anew uint64
}

// next sets when to ask again after a probe at this tick.
func (a *answers) next(tick uint64) {
	pause := uint64(1)
	for lost := a.asked - max(a.answered, a.anew); lost > probesPatient && pause < probeRarest; lost-- {
		pause *= 2
	}
	a.due = tick + pause
}

// silent is true once probesLost probes in a row went unanswered, each of which
// had a tick's time to be answered. Judge it before sending the next.
func (a *answers) silent() bool { return a.asked-a.answered >= probesLost }

// young tells that only the first probe was sent, and not answered yet.
func (a *answers) young() bool { return a.asked == 1 && a.answered == 0 }

// heard takes an answer to the probe whose number ends in seq.
func (a *answers) heard(seq uint16) {
	back := uint64(uint16(a.asked) - seq)
	if back < a.asked && a.asked-back > a.answered {
		a.answered = a.asked - back
	}
}

// echo sends echo requests from one address and takes the replies.
type echo interface {
	Send(to netip.Addr, seq uint16) error
	// Receive blocks for the next reply to one of our own requests; it fails
	// once Close was called.
	Receive() (from netip.Addr, seq uint16, err error)
	Close() error
}

// prober asks targets once a second, silent ones less often, and remembers which
// locations answer.
// Without targets it does nothing at all.
type prober struct {
	open func(from netip.Addr) (echo, error)
	wake func()
	log  *slog.Logger
	set  chan questions

	mu   sync.Mutex
	live map[place]bool // answered lately; absent: not known yet
}

// questions is whom to ask, and when there was a handshake last with the WireGuard
// peers here. One that is new has a target asked at once.
type questions struct {
	targets []target
	met     map[model.Key]time.Time
}

func newProber(open func(netip.Addr) (echo, error), wake func(), log *slog.Logger) *prober {
	return &prober{open: open, wake: wake, log: log, set: make(chan questions, 1), live: map[place]bool{}}
}

// Set says whom to ask from now on. It never blocks, and belongs to one goroutine.
func (p *prober) Set(q questions) {
	select {
	case <-p.set:
	default:
	}
	p.set <- q
}

// Live returns what is known: place to whether it answered lately. One that was
// asked too few times to tell is absent.
func (p *prober) Live() map[place]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.live)
}

type reply struct {
	on   echo
	from netip.Addr
	seq  uint16
	err  error
}

// Run probes until ctx ends.
func (p *prober) Run(ctx context.Context) error {
	var (
		targets []target
		turn    int    // where in targets the next tick starts
		tick    uint64 // number of the last one
		known   = map[target]*answers{}
		sockets = map[netip.Addr]echo{}
		replies = make(chan reply)
		readers sync.WaitGroup
		ticks   = time.NewTicker(probeInterval)
	)
	defer readers.Wait()
	defer func() {
		for _, s := range sockets {
			_ = s.Close()
		}
	}()
	defer ticks.Stop()

	// socket to ask from that address; nil where there is none.
	socket := func(from netip.Addr) echo {
		if s := sockets[from]; s != nil {
			return s
		}
		s, err := p.open(from)
		if err != nil {
			// The address may not be there yet: as good as no answer.
			p.log.Debug("cannot probe", "from", from, "error", err)
			return nil
		}
		sockets[from] = s
		readers.Go(func() {
			for {
				from, seq, err := s.Receive()
				select {
				case replies <- reply{s, from, seq, err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		})
		return s
	}
	ask := func(t target, seq uint64) {
		s := socket(t.From)
		if s == nil {
			return
		}
		if err := s.Send(t.To, uint16(seq)); err != nil {
			p.log.Debug("probe not sent", "place", t.Place, "to", t.To, "error", err)
		}
	}
	var (
		room int              // for repetitions before the next tick
		soon <-chan time.Time // when the next are due; nil: none are
	)
	arm := func() {
		soon = nil
		for _, a := range known {
			if a.young() && room > 0 {
				soon = time.After(repeatInterval)
				return
			}
		}
	}
	send := func() {
		tick++
		room = probesPerTick
		for range targets {
			if room == 0 {
				break
			}
			t := targets[turn%len(targets)]
			turn = (turn + 1) % len(targets)
			a := known[t]
			if tick < a.due {
				continue
			}
			if a.silent() {
				p.tell(t.Place, false)
			}
			room--
			a.asked++
			a.next(tick)
			ask(t, a.asked)
		}
		arm()
	}
	// greet asks those at once that there was a handshake with just now, if they
	// were silent.
	greet := func(met map[model.Key]time.Time) {
		for t, a := range known {
			if at, ok := met[t.Peer]; ok && at.After(a.met) {
				a.met, a.anew = at, a.asked
				if a.silent() && room > 0 {
					room--
					a.asked++
					a.due = tick + 1
					ask(t, a.asked)
				}
			}
		}
	}

	for {
		var clock <-chan time.Time
		if len(targets) > 0 {
			clock = ticks.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()

		case next := <-p.set:
			if slices.Equal(next.targets, targets) {
				greet(next.met)
				continue
			}
			idle := len(targets) == 0
			targets, turn = next.targets, 0
			wanted := map[target]bool{}
			places := map[place]bool{}
			from := map[netip.Addr]bool{}
			for _, t := range targets {
				wanted[t], places[t.Place], from[t.From] = true, true, true
				if known[t] == nil {
					known[t] = &answers{met: next.met[t.Peer]}
				}
			}
			maps.DeleteFunc(known, func(t target, _ *answers) bool { return !wanted[t] })
			maps.DeleteFunc(sockets, func(a netip.Addr, s echo) bool {
				if !from[a] {
					_ = s.Close()
				}
				return !from[a]
			})
			p.forget(places)
			if idle {
				ticks.Reset(probeInterval)
				send()
				continue
			}
			// Those that were asked before keep their pace: a probe more would
			// count as one lost.
			for _, t := range targets {
				if a := known[t]; a.asked == 0 && room > 0 {
					room--
					a.asked++
					a.next(tick)
					ask(t, a.asked)
				}
			}
			greet(next.met)
			arm()

		case r := <-replies:
			if r.err != nil {
				maps.DeleteFunc(sockets, func(_ netip.Addr, s echo) bool {
					if s == r.on {
						_ = s.Close()
					}
					return s == r.on
				})
				continue
			}
			for t, a := range known {
				if t.To == r.from && sockets[t.From] == r.on {
					if a.heard(r.seq); !a.silent() {
						a.due = min(a.due, tick+1)
						p.tell(t.Place, true)
					}
				}
			}

		case <-soon:
			for t, a := range known {
				if a.young() && room > 0 {
					room--
					ask(t, a.asked)
				}
			}
			arm()

		case <-clock:
			send()
		}
	}
}

// tell records whether a place answers, and wakes the loop when that is new.
func (p *prober) tell(at place, live bool) {
	p.mu.Lock()
	was, known := p.live[at]
	p.live[at] = live
	p.mu.Unlock()
	if known && was == live {
		return
	}
	if live {
		p.log.Info("answers through the tunnel", "place", at)
	} else {
		p.log.Warn("does not answer through the tunnel", "place", at, "probes", probesLost)
	}
	p.wake()
}

// forget drops what is known of places that are asked no more.
func (p *prober) forget(keep map[place]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.live, func(at place, _ bool) bool { return !keep[at] })
}
