package agent

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// How long after it was made a peer is greeted, if no handshake happened by
// then: soon by the party with the lower key, later by the other one. At the
// change of a gateway both make each other's peer at the same moment, and two
// initiations that cross on the wire cancel each other for WireGuard's five
// seconds of patience. The difference is longer than packets take.
const (
	greetFirst  = 50 * time.Millisecond
	greetSecond = 600 * time.Millisecond
)

// sessionFor is how long a handshake is good for (WireGuard's REJECT_AFTER_TIME).
const sessionFor = 180 * time.Second

// greeter makes WireGuard speak to new peers without waiting for a packet to
// send. A device that was made anew has no sessions, but its peers do, and go on
// sending into theirs for 15 seconds, to no effect, unless they hear from it.
// It belongs to the loop: a greeting shows in the device for an instant, and
// must not be taken for drift.
type greeter struct {
	own   model.Key
	peers func(context.Context) ([]PeerStatus, error)
	greet func(context.Context, model.Key) error
	log   *slog.Logger
	due   map[model.Key]greeting // each once at most
}

// greeting is to be said at a time, and anyway: also to a peer with whom there
// was a handshake.
type greeting struct {
	at     time.Time
	anyway bool
}

func newGreeter(own model.Key, k Kernel, log *slog.Logger) *greeter {
	return &greeter{own: own, peers: k.Peers, greet: k.Greet, log: log, due: map[model.Key]greeting{}}
}

// Made takes note of the peers that were made by changes.
func (g *greeter) Made(done []state.Change, now time.Time) {
	for _, c := range done {
		if p, ok := c.(state.SetPeer); ok && p.Create {
			g.due[p.Peer.Key] = greeting{at: now.Add(g.patience(p.Peer.Key))}
		}
	}
}

// Moved has all greeted at once with whom there may be a session: they are to
// hear where this node is now.
func (g *greeter) Moved(known []PeerStatus, now time.Time) {
	for i := range known {
		if known[i].Endpoint.IsValid() && now.Sub(known[i].LastHandshake) < sessionFor {
			g.due[known[i].Key] = greeting{at: now, anyway: true}
		}
	}
}

// patience is how long a new peer may speak first.
func (g *greeter) patience(k model.Key) time.Duration {
	if bytes.Compare(g.own[:], k[:]) < 0 {
		return greetFirst
	}
	return greetSecond
}

// Greet greets who is due. It returns how long it is to the next; 0: there is
// none.
func (g *greeter) Greet(ctx context.Context, now time.Time) (wait time.Duration) {
	var known []PeerStatus
	for k, due := range g.due {
		if due.at.After(now) {
			wait = soonest(wait, due.at.Sub(now))
			continue
		}
		delete(g.due, k)
		if known == nil {
			var err error
			if known, err = g.peers(ctx); err != nil {
				continue // the next pass reports it
			}
		}
		i := slices.IndexFunc(known, func(p PeerStatus) bool { return p.Key == k })
		if i < 0 || !known[i].Endpoint.IsValid() || !known[i].LastHandshake.IsZero() && !due.anyway {
			continue // no way to it, or no need
		}
		if err := g.greet(ctx, k); err != nil {
			g.log.Debug("peer not greeted", "peer", k, "error", err)
		}
	}
	return wait
}
