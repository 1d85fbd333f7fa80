package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/kilo-overlay/kilo/core/adapter"
)

const (
	discoverTimeout = 10 * time.Second
	discoverRetry   = 250 * time.Millisecond
	discoverRest    = 10 * time.Second // longest pause after a failure
)

// discoverer keeps what the host CNI says, in a goroutine of its own: a CNI
// that takes its time to answer delays nobody. The facts of the last good
// answer stay while later ones fail.
type discoverer struct {
	choose func(context.Context) (adapter.Adapter, error)
	every  time.Duration // Discover is asked that often without a hint
	wake   func()
	failed func(error)
	log    *slog.Logger

	mu    sync.Mutex
	know  cniView
	first chan struct{} // closed after the first attempt, whatever came of it
}

// cniView is what is known of the host CNI.
type cniView struct {
	adapter adapter.Adapter // nil: not chosen yet
	facts   adapter.Facts
	known   bool  // facts were discovered
	err     error // why the last attempt failed
}

func newDiscoverer(choose func(context.Context) (adapter.Adapter, error), every time.Duration, wake func(), failed func(error), log *slog.Logger) *discoverer {
	return &discoverer{choose: choose, every: every, wake: wake, failed: failed, log: log, first: make(chan struct{})}
}

// Know returns what is known now.
func (d *discoverer) Know() cniView {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.know
}

// First is closed once the CNI was asked for the first time.
func (d *discoverer) First() <-chan struct{} { return d.first }

// Run asks until ctx ends: on a hint of the adapter's, after a pause where the
// last attempt failed, and now and then.
func (d *discoverer) Run(ctx context.Context) error {
	hints := make(chan struct{}, 1)
	hint := func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
	var watcher sync.WaitGroup
	defer watcher.Wait()
	pause := backoff{min: discoverRetry, max: discoverRest}
	for watching, first := false, true; ; first = false {
		err := d.ask(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first {
			close(d.first)
		}
		if a := d.Know().adapter; a != nil && !watching {
			watching = true
			watcher.Go(func() {
				_ = keepWatching(ctx, "the host CNI", d.log, d.failed, func(ctx context.Context) error { return a.Watch(ctx, hint) }, hint)
			})
		}
		wait := d.every
		if err != nil {
			wait = pause.Next()
		} else {
			pause.Reset()
		}
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-hints:
		case <-again.C:
		}
		again.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// ask makes one attempt and records it.
func (d *discoverer) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	before := d.Know()
	now := before
	if now.adapter == nil {
		now.adapter, now.err = d.choose(ctx)
	}
	if now.adapter != nil {
		var facts adapter.Facts
		if facts, now.err = now.adapter.Discover(ctx); now.err == nil {
			facts.ClusterPrefixes = networks(facts.ClusterPrefixes)
			now.facts, now.known = facts, true
		}
	}
	d.mu.Lock()
	d.know = now
	d.mu.Unlock()

	d.tell(before, now)
	if now.known != before.known || !reflect.DeepEqual(now.facts, before.facts) || (now.err == nil) != (before.err == nil) {
		d.wake()
	}
	return now.err
}

// networks are a CNI's pod networks without that of all addresses, which is written
// to have nothing masqueraded, and tells nothing: every endpoint would be inside.
func networks(all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// tell logs transitions.
func (d *discoverer) tell(before, now cniView) {
	switch {
	case now.err != nil:
		d.failed(now.err)
		if before.err == nil || before.err.Error() != now.err.Error() {
			if unsupported := (*adapter.Unsupported)(nil); errors.As(now.err, &unsupported) {
				d.log.Error("the host CNI cannot be served", "error", now.err)
			} else {
				d.log.Warn("the host CNI is not known; keeping what was known of it", "error", now.err, "known", now.known)
			}
		}
	case !before.known, before.err != nil:
		d.log.Info("host CNI", "adapter", now.adapter.Name(), "cni", now.facts.CNI, "mode", now.facts.Mode, "podPrefixes", now.facts.PodPrefixes)
	}
}

// keepWatching runs watch again whenever it ends before its time, with pauses
// that grow, and calls missed then: something may have changed meanwhile.
func keepWatching(ctx context.Context, what string, log *slog.Logger, failed func(error), watch func(context.Context) error, missed func()) error {
	pause := backoff{min: discoverRetry, max: 30 * time.Second}
	for complained := false; ; {
		began := time.Now()
		err := watch(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > time.Minute {
			pause.Reset()
			complained = false
		}
		if err != nil {
			failed(err)
			if !complained {
				log.Warn("watching ended, trying again", "what", what, "error", err)
				complained = true
			}
		}
		if !sleep(ctx, pause.Next()) {
			return ctx.Err()
		}
		missed()
	}
}
