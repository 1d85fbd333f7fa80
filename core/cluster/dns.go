package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// How often names are looked up. Resolvers do not tell the time to live, so
// that a minute, which dynamic DNS uses, stands for it.
const (
	lookupEvery   = time.Minute
	lookupTimeout = 5 * time.Second
	lookupAgain   = 2 * time.Second // after the first failure, then twice as long each time
	lookupLatest  = 5 * time.Minute
)

// names looks up the DNS names of endpoints in the background. Nobody waits
// for it: a name has an address once one is known, and keeps the last one when
// lookups fail.
type names struct {
	lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	changed func() // an address or a problem is new

	mu      sync.Mutex
	start   func(host string, n *name) // nil unless run runs
	entries map[string]*name
}

type name struct {
	addr    netip.Addr // invalid: none known yet
	problem string     // "" after a success and before the first lookup
	stop    context.CancelFunc
}

func newNames(lookup func(context.Context, string) ([]netip.Addr, error), changed func()) *names {
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	return &names{lookup: lookup, changed: changed, entries: make(map[string]*name)}
}

// seed gives a name the address that an earlier process knew.
func (d *names) seed(host string, addr netip.Addr) {
	if host == "" || !addr.IsValid() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries[host] == nil {
		d.entries[host] = &name{addr: addr}
	}
}

// want says which names, sorted, are in use. Others are no longer looked up, and
// forgotten.
func (d *names) want(hosts []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for host, n := range d.entries {
		if _, used := slices.BinarySearch(hosts, host); !used {
			if n.stop != nil {
				n.stop()
			}
			delete(d.entries, host)
		}
	}
	for _, host := range hosts {
		n := d.entries[host]
		if n == nil {
			n = &name{}
			d.entries[host] = n
		}
		if n.stop == nil && d.start != nil {
			d.start(host, n)
		}
	}
}

// get returns what is known of a name: its address, invalid when there is none
// yet, and why the last lookup failed, "" if it did not.
func (d *names) get(host string) (netip.Addr, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.entries[host]
	if n == nil {
		return netip.Addr{}, ""
	}
	return n.addr, n.problem
}

// run looks names up until ctx ends.
func (d *names) run(ctx context.Context) {
	var wg sync.WaitGroup
	d.mu.Lock()
	d.start = func(host string, n *name) {
		lookups, stop := context.WithCancel(ctx)
		n.stop = stop
		wg.Go(func() {
			defer stop()
			d.follow(lookups, host, n)
		})
	}
	for host, n := range d.entries {
		d.start(host, n)
	}
	d.mu.Unlock()

	<-ctx.Done()
	d.mu.Lock()
	d.start = nil
	d.mu.Unlock()
	wg.Wait()
}

// follow looks one name up again and again.
func (d *names) follow(ctx context.Context, host string, n *name) {
	for failures := 0; ; {
		timeout, cancel := context.WithTimeout(ctx, lookupTimeout)
		addrs, err := d.lookup(timeout, host)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if d.note(n, addrs, err) {
			failures = 0
		} else {
			failures++
		}
		select {
		case <-time.After(jitter(pause(failures))):
		case <-ctx.Done():
			return
		}
	}
}

// note takes a lookup's outcome and tells whether it gave an address.
func (d *names) note(n *name, addrs []netip.Addr, err error) bool {
	addr := choose(n.addr, addrs)
	problem := ""
	switch {
	case err != nil:
		problem = lookupProblem(err)
		addr = n.addr
	case !addr.IsValid():
		problem = "the name has no usable address"
		addr = n.addr
	}
	d.mu.Lock()
	news := addr != n.addr || problem != n.problem
	n.addr, n.problem = addr, problem
	d.mu.Unlock()
	if news {
		d.changed()
	}
	return problem == ""
}

// choose picks an address: the one in use while it is among them, else the
// first IPv4, else the first.
func choose(current netip.Addr, addrs []netip.Addr) netip.Addr {
	var best netip.Addr
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		if _, err := parseAddr(a.String()); err != nil {
			continue
		}
		if a == current {
			return a
		}
		if !best.IsValid() || a.Is4() && !best.Is4() {
			best = a
		}
	}
	return best
}

// lookupProblem says why a lookup failed in words that stay the same from one
// attempt to the next: errors of the resolver name ports.
func lookupProblem(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "there is no such name"
	case errors.As(err, &dns) && dns.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return "the DNS server does not answer"
	}
	return "the DNS server could not answer"
}

// pause is how long to wait after so many failures in a row.
func pause(failures int) time.Duration {
	if failures == 0 {
		return lookupEvery
	}
	return min(lookupAgain<<min(failures-1, 10), lookupLatest)
}

// jitter keeps a thousand nodes from asking in one second.
func jitter(d time.Duration) time.Duration {
	return d*4/5 + time.Duration(rand.Int64N(int64(d)*2/5))
}

// problemSentence is what a person reads about an endpoint.
func problemSentence(endpoint, problem string, last netip.Addr) string {
	if last.IsValid() {
		return fmt.Sprintf("endpoint %s: %s; its last address %s is kept", endpoint, problem, last)
	}
	return fmt.Sprintf("endpoint %s: %s; the mesh waits to be spoken to from there", endpoint, problem)
}
