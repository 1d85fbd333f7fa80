package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m, nil) }

// The real kernel answers our echo requests, in both families, and each socket
// hears its own replies alone.
func TestEcho(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, text := range []string{"127.0.0.1", "::1"} {
			a := netip.MustParseAddr(text)
			first, err := openEcho(a)
			if err != nil {
				t.Fatal(err)
			}
			second, err := openEcho(a)
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Send(a, 7); err != nil {
				t.Fatal(err)
			}
			if err := second.Send(a, 9); err != nil {
				t.Fatal(err)
			}
			for s, want := range map[echo]uint16{first: 7, second: 9} {
				stop := time.AfterFunc(5*time.Second, func() { s.Close() })
				from, seq, err := s.Receive()
				stop.Stop()
				if err != nil || from != a || seq != want {
					t.Errorf("%s: reply %d from %s, %v; want %d from %s", a, seq, from, err, want, a)
				}
			}
			first.Close()
			if _, _, err := first.Receive(); err == nil {
				t.Error("a closed socket still receives")
			}
			second.Close()
		}
		if _, err := openEcho(netip.MustParseAddr("192.0.2.1")); err == nil {
			t.Error("bound to an address that is not ours")
		}
	})
}
