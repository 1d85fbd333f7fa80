package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Connections from an address that is gone end at once, others go on.
func TestConnectionsFromAddressesThatAreGone(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	from := func(a string) func(context.Context, string, string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(a)}}).DialContext
	}
	d := newDialer(nil)
	dial := func(a string) net.Conn {
		t.Helper()
		d.dial = from(a)
		c, err := d.DialContext(t.Context(), "tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	stays, goes, closed := dial("127.0.0.2"), dial("127.0.0.3"), dial("127.0.0.3")
	_ = closed.Close()
	d.closeFrom(func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.3") })

	echo := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	if err := echo(stays); err != nil {
		t.Errorf("a connection from an address that stays: %v", err)
	}
	if err := echo(goes); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection from an address that is gone: %v, want it closed", err)
	}
	_ = stays.Close()
	if len(d.open) > 0 {
		t.Errorf("%d closed connections are kept", len(d.open))
	}
}
