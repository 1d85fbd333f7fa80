package agent

import (
	"context"
	"time"
)

// backoff doubles the pause after each failure, from min to max.
type backoff struct {
	min, max time.Duration
	next     time.Duration
}

// Next returns the pause to make now.
func (b *backoff) Next() time.Duration {
	if b.next < b.min {
		b.next = b.min
	}
	now := b.next
	b.next = min(2*b.next, b.max)
	return now
}

// Reset starts again at min.
func (b *backoff) Reset() { b.next = 0 }

// sleep waits for d and tells whether ctx is still on.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
