package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PingRun is a stream of echo requests that goes on until it is stopped.
type PingRun struct {
	place *Place
	group group
	log   string
	every time.Duration
}

// PingStats is what became of a PingRun.
type PingStats struct {
	Sent, Received int
	// LongestGap is the longest time without an answer, beyond the period of
	// the requests. Without answers at the beginning or at the end it is as long
	// as the requests took that were lost there.
	LongestGap time.Duration
}

// Lost counts the requests without answer.
func (s PingStats) Lost() int { return s.Sent - s.Received }

func (s PingStats) String() string {
	return fmt.Sprintf("%d of %d lost, longest gap %s", s.Lost(), s.Sent, s.LongestGap.Round(time.Millisecond))
}

// StartPing sends an echo request every so often (10 ms at least) until Stop.
func (p *Place) StartPing(ctx context.Context, to netip.Addr, every time.Duration) (*PingRun, error) {
	pid, err := p.pid()
	if err != nil {
		return nil, err
	}
	dir := p.lab.path("ping")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, p.Name+"-*")
	if err != nil {
		return nil, err
	}
	f.Close()
	r := &PingRun{place: p, log: f.Name(), every: every, group: p.group.sub("ping", strings.TrimPrefix(f.Name(), dir+"/"))}
	_, err = process{
		group: r.group,
		argv:  []string{"/usr/bin/ping", "-n", "-D", "-i", fmt.Sprintf("%.3f", every.Seconds()), to.String()},
		log:   r.log,
		enter: pid,
	}.start(ctx)
	return r, err
}

// Stop ends the stream and tells what became of it.
func (r *PingRun) Stop(ctx context.Context) (PingStats, error) {
	var s PingStats
	if err := r.group.signal(unix.SIGINT); err != nil {
		return s, err
	}
	if !r.group.waitEmpty(ctx, 5*time.Second) {
		return s, fmt.Errorf("%s: ping does not end", r.place.Name)
	}
	if err := r.group.remove(ctx); err != nil {
		return s, err
	}
	text, err := os.ReadFile(r.log)
	if err != nil {
		return s, err
	}
	os.Remove(r.log)
	return parsePing(string(text), r.every)
}

// parsePing reads what `ping -D` prints:
//
//	[1764540000.123456] 64 bytes from 10.244.1.2: icmp_seq=1 ttl=62 time=0.5 ms
//	12 packets transmitted, 11 received, 8.3% packet loss, time 1100ms
func parsePing(text string, every time.Duration) (PingStats, error) {
	var s PingStats
	var last float64
	answered := 0 // the number of the last request that was
	summary := false
	lost := func(requests int) {
		s.LongestGap = max(s.LongestGap, time.Duration(requests)*every)
	}
	for line := range strings.Lines(text) {
		if stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "] "); ok && strings.Contains(rest, "bytes from") {
			at, err := strconv.ParseFloat(stamp, 64)
			if err != nil {
				return s, fmt.Errorf("ping printed %q: %w", line, err)
			}
			seq := 0
			_, number, _ := strings.Cut(rest, "icmp_seq=")
			if _, err := fmt.Sscanf(number, "%d", &seq); err != nil {
				return s, fmt.Errorf("ping printed %q: %w", line, err)
			}
			if last == 0 {
				lost(seq - 1)
			}
			if gap := time.Duration((at - last) * 1e9); last != 0 && gap-every > s.LongestGap {
				s.LongestGap = gap - every
			}
			last, answered = at, max(answered, seq)
		}
		if strings.Contains(line, "packets transmitted") {
			if _, err := fmt.Sscanf(line, "%d packets transmitted, %d received", &s.Sent, &s.Received); err != nil {
				return s, fmt.Errorf("ping printed %q: %w", line, err)
			}
			summary = true
		}
	}
	if !summary {
		return s, fmt.Errorf("ping ended without a summary:\n%s", text)
	}
	// The last request may still have been under way.
	if s.Sent == s.Received+1 && !strings.Contains(text, fmt.Sprintf("icmp_seq=%d ", s.Sent)) {
		s.Sent--
	}
	lost(s.Sent - answered)
	return s, nil
}
