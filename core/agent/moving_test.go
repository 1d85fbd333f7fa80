package agent

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// What a node published is no input: an address that has changed shows at once,
// and so does a forced endpoint that was taken away.
func TestEndpointAfterTheAddressChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// e1 has published 198.51.100.1, and has 198.51.100.8 now.
		r := start(t, e1(), snapshot(e1(), e2(), w1()), func(r *rig) {
			r.Settings.PublicCIDRs = prefixes("198.51.100.0/24")
			r.cluster.inputs.ForceEndpoint = model.Endpoint{}
			r.kernel.host.Interfaces = append(r.kernel.host.Interfaces,
				model.Interface{Index: 4, Name: "eth1", MTU: 1500, Up: true, Addresses: prefixes("198.51.100.8/24")})
		})
		defer r.stop()
		published := func(when, want string) {
			t.Helper()
			r.settle(time.Second)
			if got := r.cluster.me().Endpoint.String(); got != want {
				t.Errorf("%s: published %s, want %s", when, got, want)
			}
		}
		published("after the address changed", "198.51.100.8:51820")
		r.cluster.change(func(c *fakeCluster) { c.inputs.ForceEndpoint = endpointAt("198.51.100.99:4500") })
		published("forced", "198.51.100.99:4500")
		r.cluster.change(func(c *fakeCluster) { c.inputs.ForceEndpoint = model.Endpoint{} })
		published("forced no more", "198.51.100.8:51820")
	})
}

// A Peer without an endpoint is wherever it was heard last: reconciling writes
// nothing to the device on that account, however often, also when it roams.
func TestRoamingPeerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		s.Peers = []model.Peer{{Name: "laptop", UID: "p", Key: key("laptop"), AllowedIPs: prefixes("10.5.0.1/32")}}
		r := start(t, e1(), s, nil)
		defer r.stop()
		r.settle(time.Second)
		if r.peer(t, "laptop") == nil {
			t.Fatal("the Peer is not on the device")
		}
		r.kernel.Made()
		for _, at := range []string{"203.0.113.7:40000", "198.18.0.9:1024"} {
			where := netip.MustParseAddrPort(at)
			if !r.kernel.Handshake(key("laptop"), where) {
				t.Fatal("no such peer")
			}
			r.kernel.hear(PeerStatus{Key: key("laptop"), Endpoint: where, LastHandshake: time.Now()})
			for range 10 {
				r.kernel.stir()
				r.settle(time.Second)
			}
			if made := r.kernel.Made(); len(made) > 0 {
				t.Errorf("at %s: %v", at, made)
			}
			if p := r.peer(t, "laptop"); p.Endpoint != where {
				t.Errorf("the device sends to %s, the Peer is at %s", p.Endpoint, where)
			}
		}
	})
}

// A gateway that moves to another location leaves its claim behind: in the new
// one it takes nobody's place.
func TestClaimsStayInTheirLocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, there := e1(), w1()
		me.Epoch, there.Epoch = 3, 1
		r := start(t, me, snapshot(me, e2(), there), nil)
		defer r.stop()
		r.settle(time.Second)
		if now := r.cluster.me(); now.Epoch != 3 {
			t.Fatalf("epoch %d before anything happened", now.Epoch)
		}
		r.cluster.change(func(c *fakeCluster) { c.inputs.LocationAnnotation = "west" })
		r.settle(time.Minute)
		if now := r.cluster.me(); now.Location != "west" || now.Epoch != 0 || now.Asked != me.Asked {
			t.Errorf("in location %q with epoch %d, asked %q; want west, none, %q", now.Location, now.Epoch, now.Asked, me.Asked)
		}
		// Alone in a third one it claims that.
		r.cluster.change(func(c *fakeCluster) { c.inputs.LocationAnnotation = "north" })
		r.settle(time.Minute)
		if now := r.cluster.me(); now.Location != "north" || now.Epoch != 1 {
			t.Errorf("in location %q with epoch %d; want north, 1", now.Location, now.Epoch)
		}
	})
}
