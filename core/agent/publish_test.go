package agent

import (
	"context"
	"errors"
	"log/slog"
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
		away := true
		var attempts, failures int
		var written []string
		p := newPublisher(func(_ context.Context, v statement) error {
			attempts++
			if away {
				return errors.New("connection refused")
			}
			written = append(written, v.facts.Location)
			return nil
		}, slog.New(slog.DiscardHandler), func(error) { failures++ })
		go func() { _ = p.Run(ctx) }()

		p.Offer(statement{facts: &model.Published{Location: "first"}})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// 0.5 s, 1 s … 16 s, then every 30 s.
		if attempts < 20 || attempts > 30 {
			t.Errorf("%d attempts in ten minutes without an API server; want about 25", attempts)
		}
		if failures != attempts {
			t.Errorf("%d failures counted of %d", failures, attempts)
		}
		p.Offer(statement{facts: &model.Published{Location: "second"}})
		p.Offer(statement{facts: &model.Published{Location: "third"}})
		away = false
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(written) != 1 || written[0] != "third" {
			t.Errorf("written %v; want the newest alone", written)
		}
		cancel()
		synctest.Wait()
	})
}

// Two agents of one name answer each other's writes for ever; the pace holds.
func TestPublisherIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var p *publisher
		n := 0
		p = newPublisher(func(context.Context, statement) error {
			n++
			go p.Offer(statement{facts: &model.Published{Epoch: uint64(n)}})
			return nil
		}, slog.New(slog.DiscardHandler), func(error) {})
		go func() { _ = p.Run(ctx) }()
		p.Offer(statement{facts: &model.Published{}})
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if most := publishBurst + 60*publishPace + 1; n > most {
			t.Errorf("%d writes in a minute; want at most %d", n, most)
		}
	})
}
