package cluster

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// dialTimeout bounds one attempt to connect. One from an address that the node
// has lost meanwhile ends by it.
const dialTimeout = 10 * time.Second

// dialer opens the connections to the API server and knows those that are open.
type dialer struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	open map[*connection]struct{}
}

type connection struct {
	net.Conn
	from *dialer
}

func newDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) *dialer {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	return &dialer{dial: dial, open: make(map[*connection]struct{})}
}

func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	out := &connection{Conn: c, from: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[out] = struct{}{}
	return out, nil
}

func (c *connection) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}

// closeFrom closes the connections from addresses that gone names.
func (d *dialer) closeFrom(gone func(netip.Addr) bool) {
	d.mu.Lock()
	var dead []*connection
	for c := range d.open {
		if at, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil && gone(at.Addr().Unmap()) {
			dead = append(dead, c)
		}
	}
	d.mu.Unlock()
	for _, c := range dead {
		_ = c.Close()
	}
}

// AddressesGone tells that the node no longer has some addresses. What was asked
// of the API server from one of them is never answered, which by itself would
// show after most of a minute; it is asked anew.
func (c *Cluster) AddressesGone(gone func(netip.Addr) bool) {
	c.dialer.closeFrom(gone)
}
