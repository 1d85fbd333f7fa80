package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A burst is one wake-up, with all its reasons; a burst without end is cut.
func TestWakeUpsCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaker()
		began := time.Now()
		go func() {
			for range 5 { // 5 ms apart: never quiet for 20 ms
				w.Wake(becauseCluster)
				time.Sleep(5 * time.Millisecond)
			}
			w.Wake(becauseKernel)
		}()
		why, err := w.Wait(t.Context(), 20*time.Millisecond, 200*time.Millisecond)
		if err != nil || why != becauseCluster|becauseKernel {
			t.Fatalf("Wait = %v, %v; want cluster+kernel", why, err)
		}
		if took := time.Since(began); took != 45*time.Millisecond {
			t.Errorf("woke after %v; want 45ms, that is 20ms after the last of the burst", took)
		}
		if why.String() != "cluster+kernel" {
			t.Errorf("reasons print as %q", why)
		}

		// Nothing is left over for the next Wait.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := w.Wait(ctx, 20*time.Millisecond, 200*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second Wait returned %v; want none before its deadline", err)
		}
	})
}

func TestEndlessBurstIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWaker()
		go func() {
			for sleep(ctx, 5*time.Millisecond) {
				w.Wake(becauseKernel)
			}
		}()
		began := time.Now()
		if _, err := w.Wait(ctx, 20*time.Millisecond, 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 205*time.Millisecond {
			t.Errorf("woke after %v; want 200ms after the first of the burst", took)
		}
	})
}
