package cluster

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// zone is a DNS server whose answers a test sets.
type zone struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	err     error
	asked   []time.Time
}

func (z *zone) set(err error, host string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err, z.answers = err, map[string][]netip.Addr{}
	for _, a := range addrs {
		z.answers[host] = append(z.answers[host], netip.MustParseAddr(a))
	}
}

func (z *zone) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked = append(z.asked, time.Now())
	if z.err != nil {
		return nil, z.err
	}
	if z.answers[host] == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return z.answers[host], nil
}

// requests returns when lookups came since it was last called.
func (z *zone) requests() []time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	asked := z.asked
	z.asked = nil
	return asked
}

// resolving runs body with names that look up in a zone, on a clock of its own.
func resolving(t *testing.T, body func(z *zone, d *names, changes func() int)) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{}
		count := 0
		var mu sync.Mutex
		d := newNames(z.lookup, func() { mu.Lock(); count++; mu.Unlock() })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.run(ctx); close(done) }()
		synctest.Wait()
		body(z, d, func() int { mu.Lock(); defer mu.Unlock(); n := count; count = 0; return n })
		stop()
		<-done // run leaves no lookup behind
	})
}

func (d *names) mustBe(t *testing.T, host, addr, problem string) {
	t.Helper()
	a, p := d.get(host)
	got := ""
	if a.IsValid() {
		got = a.String()
	}
	if got != addr || p != problem {
		t.Errorf("%s is %q, problem %q; want %q, %q", host, got, p, addr, problem)
	}
}

const home = "home.example.test"

// TC21: the new address is known within a minute or two.
func TestNameThatMoves(t *testing.T) {
	resolving(t, func(z *zone, d *names, changes func() int) {
		z.set(nil, home, "203.0.113.5")
		d.mustBe(t, home, "", "")
		d.want([]string{home})
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.5", "")
		if changes() != 1 {
			t.Error("the first address is news, once")
		}
		z.set(nil, home, "203.0.113.6")
		time.Sleep(2 * lookupEvery)
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.6", "")
		if changes() != 1 {
			t.Error("the new address is news, once")
		}
	})
}

func TestNameOfSeveralAddresses(t *testing.T) {
	resolving(t, func(z *zone, d *names, changes func() int) {
		z.set(nil, home, "2001:db8::5", "127.0.0.1", "203.0.113.6", "203.0.113.5")
		d.want([]string{home})
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.6", "") // the first IPv4 that can be
		changes()
		z.set(nil, home, "203.0.113.5", "2001:db8::5", "203.0.113.6") // turned round
		time.Sleep(10 * lookupEvery)
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.6", "")
		if n := changes(); n != 0 {
			t.Errorf("%d changes, though the address in use is still there", n)
		}
	})
}

// TC20: a name that fails keeps its last address, and is nobody else's concern.
func TestNameThatFails(t *testing.T) {
	resolving(t, func(z *zone, d *names, changes func() int) {
		const other = "other.example.test"
		z.set(nil, other, "203.0.113.9")
		d.want([]string{home, other})
		synctest.Wait()
		d.mustBe(t, home, "", "there is no such name")
		d.mustBe(t, other, "203.0.113.9", "")

		z.set(nil, home, "203.0.113.5")
		time.Sleep(2 * lookupAgain) // soon after the first failure
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.5", "")

		z.set(&net.DNSError{Err: "read udp 10.0.0.1:4711: i/o timeout", IsTimeout: true}, "")
		changes()
		time.Sleep(time.Hour)
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.5", "the DNS server does not answer") // and the last address
		if n := changes(); n != 2 {
			t.Errorf("%d changes in an hour of failures of two names, want one each", n)
		}
		z.set(errors.New("server misbehaving 17"), "")
		time.Sleep(2 * lookupLatest)
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.5", "the DNS server could not answer")
	})
}

// At rest a name is asked for about once a minute; failures are asked for less
// and less often, but at least every few minutes.
func TestHowOftenNamesAreAskedFor(t *testing.T) {
	resolving(t, func(z *zone, d *names, _ func() int) {
		z.set(nil, home, "203.0.113.5")
		d.want([]string{home})
		time.Sleep(time.Hour)
		if n := len(z.requests()); n < 50 || n > 75 {
			t.Errorf("asked %d times in an hour", n)
		}
		z.set(errors.New("away"), "")
		time.Sleep(time.Hour)
		synctest.Wait()
		asked := z.requests()
		if n := len(asked); n < 10 || n > 25 {
			t.Errorf("asked %d times in an hour of failures", n)
		}
		for i := 1; i < len(asked); i++ {
			if pause := asked[i].Sub(asked[i-1]); pause > lookupLatest*6/5 {
				t.Errorf("%v without asking", pause)
			}
		}
	})
}

func TestNamesNoLongerWanted(t *testing.T) {
	resolving(t, func(z *zone, d *names, _ func() int) {
		z.set(nil, home, "203.0.113.5")
		d.want([]string{home})
		synctest.Wait()
		d.want(nil)
		d.mustBe(t, home, "", "")
		z.requests()
		time.Sleep(time.Hour)
		if n := len(z.requests()); n != 0 {
			t.Errorf("asked %d times for a name that nobody uses", n)
		}
	})
}

// What an earlier process knew serves until the first answer, and after it if
// that is a failure.
func TestSeededName(t *testing.T) {
	resolving(t, func(z *zone, d *names, _ func() int) {
		d.seed(home, netip.MustParseAddr("203.0.113.5"))
		d.mustBe(t, home, "203.0.113.5", "")
		d.want([]string{home})
		synctest.Wait()
		d.mustBe(t, home, "203.0.113.5", "there is no such name")
	})
}
