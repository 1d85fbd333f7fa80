package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kilo-overlay/kilo/core/firewall"
	"github.com/kilo-overlay/kilo/core/model"
)

// Forward is the FORWARD chains of others; core/kernel has the real one.
type Forward interface {
	// Chains lists them. What could not be read is missing and named in the error.
	Chains(ctx context.Context) ([]firewall.Chain, error)
	// Apply makes a change and verifies it. A chain that is gone has nothing of
	// ours in it.
	Apply(ctx context.Context, c firewall.Change) error
	// Watch calls changed whenever Chains might answer something new, until ctx
	// ends.
	Watch(ctx context.Context, changed func()) error
}

const (
	forwardTimeout = 15 * time.Second
	forwardRest    = 30 * time.Second // longest pause after a failure
)

// ForwardRules is the kind of warning about a chain of others that could not be
// read, or changed as --iptables-forward-rules asks.
const ForwardRules = "ForwardRules"

// forwarder watches the FORWARD chains of others and, where it is asked to, keeps
// an accept of ours in those that drop. It has a goroutine of its own: another
// program may hold the lock of iptables for long.
type forwarder struct {
	chains Forward
	accept bool
	dir    string // of the record
	object string // what warnings are about
	every  time.Duration
	wake   func()
	failed func(error)
	// mended counts an accept that was put in again.
	mended func()
	log    *slog.Logger
	hints  chan struct{}
	pace   *rate.Limiter

	mu       sync.Mutex
	wants    *firewall.Wants // nil: not known yet, and nothing is done
	warnings []model.Warning
}

// Set says which packets of the mesh this node forwards. Until then nothing is
// changed: an agent that has just started must not take out what it needs.
func (f *forwarder) Set(ipv4, ipv6 bool) {
	w := firewall.Wants{Accept: f.accept, IPv4: ipv4, IPv6: ipv6}
	f.mu.Lock()
	news := f.wants == nil || *f.wants != w
	f.wants = &w
	f.mu.Unlock()
	if news {
		f.hint()
	}
}

// Warnings are those that hold now.
func (f *forwarder) Warnings() []model.Warning {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.warnings
}

func (f *forwarder) hint() {
	select {
	case f.hints <- struct{}{}:
	default:
	}
}

// Run looks until ctx ends: on news, after a pause where something failed, and
// now and then.
func (f *forwarder) Run(ctx context.Context) error {
	var watcher sync.WaitGroup
	defer watcher.Wait()
	watcher.Go(func() {
		_ = keepWatching(ctx, "the FORWARD chains of others", f.log, f.failed, func(ctx context.Context) error { return f.chains.Watch(ctx, f.hint) }, f.hint)
	})
	pause := backoff{min: retryMin, max: forwardRest}
	for {
		wait := f.every
		if err := f.look(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			f.failed(err)
			wait = pause.Next()
		} else {
			pause.Reset()
		}
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-f.hints:
		case <-again.C:
		}
		again.Stop()
		// A fight with somebody who takes it out again must not eat the machine.
		if !sleep(ctx, debt(f.pace)) {
			return ctx.Err()
		}
	}
}

// look finds the chains, decides and acts once.
func (f *forwarder) look(ctx context.Context) error {
	f.mu.Lock()
	wants := f.wants
	f.mu.Unlock()
	if wants == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	found, err := f.chains.Chains(ctx)
	if err != nil {
		// What was not read is not gone.
		f.tell([]model.Warning{{Kind: ForwardRules, Object: f.object, Message: fmt.Sprintf("the FORWARD chains of others cannot be read: %v", err)}})
		return err
	}
	record, err := readUndo(f.dir)
	if err != nil {
		f.log.Warn("starting a new record", "error", err)
	}
	changes, warnings := firewall.Decide(found, record, *wants, f.object)
	var errs []error
	for _, c := range changes {
		again := slices.Contains(record, c.Chain)
		record, err = changeForward(ctx, f.chains, f.dir, record, c)
		if err != nil {
			errs = append(errs, err)
			warnings = append(warnings, model.Warning{Kind: ForwardRules, Object: f.object, Message: err.Error()})
			continue
		}
		f.log.Info("changed a FORWARD chain of somebody else, as --iptables-forward-rules says", "done", c)
		if c.Accept && again {
			f.mended()
			f.pace.Allow()
		}
	}
	f.tell(warnings)
	return errors.Join(errs...)
}

// changeForward makes a change and returns the record after it, which is written
// first where something is put in.
func changeForward(ctx context.Context, chains Forward, dir string, record []firewall.ID, c firewall.Change) ([]firewall.ID, error) {
	after := firewall.Record(record, c)
	if c.Accept {
		if err := writeUndo(dir, after); err != nil {
			return record, fmt.Errorf("%s: not done, since it could not be recorded: %w", c, err)
		}
		return after, chains.Apply(ctx, c)
	}
	if err := chains.Apply(ctx, c); err != nil {
		return record, err
	}
	return after, writeUndo(dir, after)
}

// tell replaces the warnings, and wakes the loop where they are others.
func (f *forwarder) tell(warnings []model.Warning) {
	f.mu.Lock()
	news := !slices.Equal(f.warnings, warnings)
	f.warnings = warnings
	f.mu.Unlock()
	if news {
		f.wake()
	}
}

// TakeAcceptsOut takes every accept of ours out of the chains of others: those
// that the record in dir names and those that are found. It goes on after errors,
// and returns what was done and what went wrong; the record keeps what is left.
func TakeAcceptsOut(ctx context.Context, chains Forward, dir string) ([]firewall.Change, error) {
	found, err := chains.Chains(ctx)
	errs := []error{err}
	// A record that cannot be understood goes too: what is ours is found by its
	// comment.
	record, _ := readUndo(dir)
	changes, _ := firewall.Decide(found, record, firewall.Wants{}, "")
	var done []firewall.Change
	for _, c := range changes {
		record, err = changeForward(ctx, chains, dir, record, c)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, c)
	}
	return done, errors.Join(append(errs, writeUndo(dir, record))...)
}
