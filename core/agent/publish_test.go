package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// While the API server is away nothing waits, and when it is back it gets the
// newest value alone.
func TestPublisherKeepsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		away, attempts, failures := true, 0, 0
		var written []string
		p := newPublisher(func(_ context.Context, v statement) error {
			mu.Lock()
			defer mu.Unlock()
			attempts++
			if away {
				return errors.New("connection refused")
			}
			written = append(written, v.facts.Location)
			return nil
		}, slog.New(slog.DiscardHandler), func(error) { mu.Lock(); defer mu.Unlock(); failures++ })
		go func() { _ = p.Run(ctx) }()

		p.Offer(statement{facts: &model.Published{Location: "first"}})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		// 0.5 s, 1 s … 16 s, then every 30 s.
		if attempts < 20 || attempts > 30 {
			t.Errorf("%d attempts in ten minutes without an API server; want about 25", attempts)
		}
		if failures != attempts {
			t.Errorf("%d failures counted of %d", failures, attempts)
		}
		away = false
		mu.Unlock()
		p.Offer(statement{facts: &model.Published{Location: "second"}})
		p.Offer(statement{facts: &model.Published{Location: "third"}})
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(written) != 1 || written[0] != "third" {
			t.Errorf("written %v; want the newest alone", written)
		}
	})
}

// Two agents of one name answer each other's writes for ever; the pace holds.
func TestPublisherIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var p *publisher
		var n atomic.Int64
		p = newPublisher(func(context.Context, statement) error {
			// Each write is answered by another one, from the loop.
			time.AfterFunc(time.Millisecond, func() { p.Offer(statement{facts: &model.Published{Epoch: uint64(n.Add(1))}}) })
			return nil
		}, slog.New(slog.DiscardHandler), func(error) {})
		go func() { _ = p.Run(ctx) }()
		p.Offer(statement{facts: &model.Published{}})
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if n, most := n.Load(), int64(publishBurst+60*publishPace+1); n > most || n < 60 {
			t.Errorf("%d writes in a minute; want 60 to %d", n, most)
		}
	})
}
