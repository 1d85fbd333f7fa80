package agent

import (
	"context"
	"strings"
	"sync"
	"time"
)

// reason says what woke the loop. Every reason leads to the same full
// recomputation; it is kept for the log, and because repairs of drift are
// paced (see drift).
type reason uint16

const (
	becauseCluster reason = 1 << iota // Nodes, Peers, Services changed
	becauseAdapter                    // the host CNI's facts changed
	becauseKernel                     // something in the kernel changed
	becauseTimer                      // the resync period is over
	becauseProbe                      // a location began or ceased to answer
	becausePeers                      // WireGuard learned an endpoint
	becauseForward                    // chains of others drop, or no longer do
	becauseRetry                      // the last pass left something undone
	becauseClaim                      // another gateway serves
)

func (r reason) String() string {
	var words []string
	for i, w := range []string{"cluster", "adapter", "kernel", "timer", "probe", "peers", "forward", "retry", "claim"} {
		if r&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return strings.Join(words, "+")
}

// waker turns any number of wake-ups into one: a burst of events, such as a
// Node update followed by the kernel's own messages, is worth one pass.
type waker struct {
	mu   sync.Mutex
	why  reason
	ring chan struct{} // capacity 1
}

func newWaker() *waker { return &waker{ring: make(chan struct{}, 1)} }

// Wake asks for a pass. It never blocks.
func (w *waker) Wake(r reason) {
	w.mu.Lock()
	w.why |= r
	w.mu.Unlock()
	select {
	case w.ring <- struct{}{}:
	default:
	}
}

// Wait blocks until somebody asks for a pass, then until nobody has asked for
// quiet, but no longer than most. It returns every reason since the last Wait,
// or ctx's error.
func (w *waker) Wait(ctx context.Context, quiet, most time.Duration) (reason, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-w.ring:
	}
	enough := time.NewTimer(most)
	defer enough.Stop()
	settled := time.NewTimer(quiet)
	defer settled.Stop()
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-w.ring:
			settled.Reset(quiet)
		case <-settled.C:
			waiting = false
		case <-enough.C:
			waiting = false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	why := w.why
	w.why = 0
	return why, nil
}
