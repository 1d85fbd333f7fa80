package wireguard

import (
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
)

// Whose packets are dropped, and whose are left to wait.
func TestInVain(t *testing.T) {
	began := time.Unix(100000, 0)
	ago := func(d time.Duration) time.Time { return began.Add(-d) }
	type look struct {
		handshake time.Time
		sent      uint64
		vain      bool
	}
	for name, c := range map[string]struct {
		noEndpoint bool
		looks      []look // ten seconds apart
	}{
		"there is a session":            {looks: []look{{ago(0), 100, false}, {ago(0), 200, false}, {ago(0), 300, false}}},
		"nobody sends it anything":      {looks: []look{{time.Time{}, 0, false}, {time.Time{}, 0, false}, {time.Time{}, 0, false}}},
		"it has just begun to try":      {looks: []look{{time.Time{}, 0, false}, {time.Time{}, 0, false}, {time.Time{}, 148, false}}},
		"it tries for more than a look": {looks: []look{{time.Time{}, 0, false}, {time.Time{}, 148, false}, {time.Time{}, 444, true}, {time.Time{}, 740, true}}},
		"it gave up and begins again":   {looks: []look{{time.Time{}, 148, false}, {time.Time{}, 148, false}, {time.Time{}, 296, false}}},
		"a session that is over":        {looks: []look{{ago(175 * time.Second), 1, false}, {ago(175 * time.Second), 2, false}, {ago(175 * time.Second), 3, false}, {ago(175 * time.Second), 4, true}}},
		"it came back":                  {looks: []look{{time.Time{}, 0, false}, {time.Time{}, 148, false}, {ago(-15 * time.Second), 500, false}}},
		"there is no way to try":        {noEndpoint: true, looks: []look{{time.Time{}, 0, false}, {time.Time{}, 0, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			var s staged
			for i, l := range c.looks {
				key := device.NoisePublicKey{1}
				got := s.judge([]peerState{{key, !c.noEndpoint, l.handshake, l.sent}}, began.Add(time.Duration(i)*stagedEvery))
				if slices.Contains(got, key) != l.vain {
					t.Errorf("look %d: in vain %t, want %t", i, !l.vain, l.vain)
				}
			}
		})
	}
}

// The device's own memory: what waits for a peer that is away is not kept for ever.
func TestStagedPacketsAreFreed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		o := userspaceDevice()
		o.stagedEvery = time.Second
		ensure(t, o)
		link, err := netlink.LinkByName(o.Interface)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
		_, all, _ := net.ParseCIDR("10.9.0.0/24")
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Scope: netlink.SCOPE_LINK}); err != nil {
			t.Fatal(err)
		}
		addr, _ := netlink.ParseAddr("10.9.1.1/32")
		if err := netlink.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
		away := newKey(t).PublicKey()
		c, err := wgctrl.New()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		private := newKey(t)
		if err := c.ConfigureDevice(o.Interface, wgtypes.Config{PrivateKey: &private, Peers: []wgtypes.PeerConfig{{PublicKey: away, AllowedIPs: []net.IPNet{*all}}}}); err != nil {
			t.Fatal(err)
		}

		// Its own buffers, to read from the interface and from two sockets.
		eventually(t, func() bool { return heap() > 3*conn.IdealBatchSize<<16 })
		before := heap()
		to, err := net.Dial("udp", "10.9.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		// Without that the test shows nothing.
		eventually(t, func() bool {
			for range device.QueueStagedSize {
				if _, err := to.Write([]byte("who is there?")); err != nil {
					t.Fatal(err)
				}
			}
			return heap()-before > 4<<20
		})
		eventually(t, func() bool { return heap()-before < 1<<20 })
	})
}

// heap is what is in use, what pools keep for later left out.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
