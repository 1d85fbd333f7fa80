package agent

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Of two that make each other's peer at the same time, the one with the lower
// key greets at once and the other one only if that has not worked. Nobody
// greets whom it has met or cannot reach, nor twice.
func TestPeersAreGreeted(t *testing.T) {
	low, high := key("e1"), key("w1")
	if bytes.Compare(low[:], high[:]) > 0 {
		low, high = high, low
	}
	at, began := netip.MustParseAddrPort("203.0.113.9:51820"), time.Unix(1000, 0)
	for _, c := range []struct {
		name         string
		self, other  model.Key
		status       PeerStatus
		soon, atLast int // greetings
	}{
		{"the lower key", low, high, PeerStatus{Endpoint: at}, 1, 1},
		{"the higher key", high, low, PeerStatus{Endpoint: at}, 0, 1},
		{"they have met", high, low, PeerStatus{Endpoint: at, LastHandshake: began}, 0, 0},
		{"no way to it", low, high, PeerStatus{}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var greeted []model.Key
			c.status.Key = c.other
			g := &greeter{own: c.self, log: slog.New(slog.DiscardHandler), due: map[model.Key]greeting{},
				peers: func(context.Context) ([]PeerStatus, error) { return []PeerStatus{c.status}, nil },
				greet: func(_ context.Context, k model.Key) error { greeted = append(greeted, k); return nil }}
			g.Made([]state.Change{
				state.SetPeer{Peer: state.Peer{Key: c.other}, Create: true},
				state.SetPeer{Peer: state.Peer{Key: key("changed")}},
			}, began)
			if wait := g.Greet(t.Context(), began); wait <= 0 || len(greeted) > 0 {
				t.Errorf("greets %v without giving it a moment", greeted)
			}
			for _, step := range []struct {
				after time.Duration
				want  int
			}{{100 * time.Millisecond, c.soon}, {time.Second, c.atLast}, {time.Minute, c.atLast}} {
				g.Greet(t.Context(), began.Add(step.after))
				if len(greeted) != step.want {
					t.Errorf("after %s: %d greetings, want %d", step.after, len(greeted), step.want)
				}
			}
			for _, k := range greeted {
				if k != c.other {
					t.Errorf("greets %s", k)
				}
			}
		})
	}
}
