package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/kilo-overlay/kilo/core/model"
)

const (
	publishTimeout = 15 * time.Second
	publishRetry   = 500 * time.Millisecond
	publishRest    = 30 * time.Second // longest pause between two attempts
	// Two agents that run under one node name would answer each other's writes
	// for ever; this pace keeps that from hurting the API server.
	publishPace  = 1 // a second
	publishBurst = 10
)

// statement is what a node says about itself at one moment.
type statement struct {
	facts     *model.Published // nil: not enough is known to say anything
	condition *condition       // nil: no news
	heard     *model.Heard     // nil: another gateway tells how Peers fare
}

// condition is how the node's agent fares, for the Node condition KiloMesh.
type condition struct {
	ready   bool
	reason  string // a CamelCase word; the condition is written anew when it changes
	message string
}

// publisher hands statements to the API server from a goroutine of its own, so
// that nothing on the data path waits for the API. It keeps one: a newer one
// replaces what was not written yet.
type publisher struct {
	publish func(context.Context, statement) error
	log     *slog.Logger
	failed  func(error) // called for every failed attempt
	box     chan statement
}

func newPublisher(publish func(context.Context, statement) error, log *slog.Logger, failed func(error)) *publisher {
	return &publisher{publish: publish, log: log, failed: failed, box: make(chan statement, 1)}
}

// publishTo returns a publisher's publish that writes through c.
func publishTo(c Cluster) func(context.Context, statement) error {
	return func(ctx context.Context, s statement) error {
		var errs []error
		if s.facts != nil {
			errs = append(errs, c.Publish(ctx, *s.facts))
		}
		if s.condition != nil {
			errs = append(errs, c.Condition(ctx, s.condition.ready, s.condition.reason, s.condition.message))
		}
		if s.heard != nil {
			errs = append(errs, c.PeerStatuses(ctx, *s.heard))
		}
		return errors.Join(errs...)
	}
}

// Offer replaces whatever waits to be published. It never blocks, and belongs
// to one goroutine.
func (p *publisher) Offer(v statement) {
	select {
	case <-p.box:
	default:
	}
	p.box <- v
}

// Run publishes until ctx ends. publish is expected to write only what
// differs, so that offering the same value again costs nothing.
func (p *publisher) Run(ctx context.Context) error {
	pace := rate.NewLimiter(publishPace, publishBurst)
	pause := backoff{min: publishRetry, max: publishRest}
	var v statement
	for failing := false; ; {
		if failing {
			// The value is still to be written; a newer one takes its place.
			if !sleep(ctx, pause.Next()) {
				return ctx.Err()
			}
			v = newest(p.box, v)
		} else {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case v = <-p.box:
			}
		}
		if err := pace.Wait(ctx); err != nil {
			return ctx.Err()
		}
		v = newest(p.box, v)

		one, cancel := context.WithTimeout(ctx, publishTimeout)
		err := p.publish(one, v)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			p.failed(err)
			if !failing {
				p.log.Warn("cannot publish what this node says about itself; the data path goes on, trying again", "error", err)
			}
			failing = true
		default:
			if failing {
				p.log.Info("publishing works again")
			}
			failing = false
			pause.Reset()
		}
	}
}

// newest returns the value that waits in box, or else v.
func newest(box <-chan statement, v statement) statement {
	select {
	case v = <-box:
	default:
	}
	return v
}
