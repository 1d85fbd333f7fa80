package agent

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// TC23: what a node published is no input: an address that has changed shows at once,
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

// TC24: a Peer without an endpoint is wherever it was heard last: reconciling writes
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

// A node whose addresses change speaks to its peers from where it is now, and
// asks the API server anew. What is said to itself, or by a CNI, is no move.
func TestNodeThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e1(), snapshot(e1(), e2(), w1()), nil)
		defer r.stop()
		r.settle(5 * time.Second)
		r.kernel.hear(PeerStatus{Key: key("w1"), Endpoint: w1().Endpoint.AddrPort(), LastHandshake: time.Now()})
		change := func(f func(h *model.Host)) (greeted []model.Key, gone []netip.Addr) {
			t.Helper()
			r.kernel.mu.Lock()
			r.kernel.greeted = nil
			r.kernel.host.Interfaces = slices.Clone(r.kernel.host.Interfaces)
			f(&r.kernel.host)
			r.kernel.mu.Unlock()
			r.kernel.stir()
			r.settle(time.Second)
			r.kernel.mu.Lock()
			defer r.kernel.mu.Unlock()
			r.cluster.change(func(c *fakeCluster) { gone, c.gone = c.gone, nil })
			return r.kernel.greeted, gone
		}
		for _, c := range []struct {
			what    string
			do      func(h *model.Host)
			greeted []model.Key
			gone    []netip.Addr
		}{
			{"a pod's interface", func(h *model.Host) {
				h.Interfaces = append(h.Interfaces, model.Interface{Index: 9, Name: "veth9", Up: true, Addresses: prefixes("fe80::9/64")})
			}, nil, nil},
			{"one address more", func(h *model.Host) {
				h.Interfaces[0].Addresses = prefixes("10.0.0.1/24", "198.51.100.8/24")
			}, []model.Key{key("w1")}, nil},
			{"another instead", func(h *model.Host) {
				h.Interfaces[0].Addresses = prefixes("10.0.0.1/24", "198.51.100.9/24")
			}, []model.Key{key("w1")}, addrs("198.51.100.8")},
			{"another way out", func(h *model.Host) { h.DefaultDevices = []string{"eth1"} }, []model.Key{key("w1")}, nil},
			{"nothing", func(*model.Host) {}, nil, nil},
		} {
			if greeted, gone := change(c.do); !slices.Equal(greeted, c.greeted) || !slices.Equal(gone, c.gone) {
				t.Errorf("%s: greeted %v, gone %v; want %v, %v", c.what, greeted, gone, c.greeted, c.gone)
			}
		}
	})
}

// TC21: a node whose published endpoint changes is followed where it was spoken to
// before, and only from there: one that has roamed is left where it is.
func TestPublishedEndpointIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e1(), snapshot(e1(), e2(), w1()), nil)
		defer r.stop()
		r.settle(time.Second)
		alive := func(at string) {
			t.Helper()
			if !r.kernel.Handshake(key("w1"), netip.MustParseAddrPort(at)) {
				t.Fatal("no such peer")
			}
			r.kernel.hear(PeerStatus{Key: key("w1"), Endpoint: netip.MustParseAddrPort(at), LastHandshake: time.Now()})
		}
		publish := func(at, want string) {
			t.Helper()
			n := w1()
			n.Endpoint = endpointAt(at)
			r.cluster.setNode(n)
			r.settle(time.Second)
			p := r.peer(t, "w1")
			r.kernel.hear(PeerStatus{Key: key("w1"), Endpoint: p.Endpoint, LastHandshake: time.Now()})
			if p.Endpoint.String() != want {
				t.Errorf("w1 publishes %s and is spoken to at %s, want %s", at, p.Endpoint, want)
			}
		}
		alive("203.0.113.9:51820") // where it is published
		publish("203.0.113.10:51820", "203.0.113.10:51820")
		publish("203.0.113.11:51820", "203.0.113.11:51820")
		alive("198.18.0.7:4000")
		publish("203.0.113.12:51820", "198.18.0.7:4000")
		r.settle(time.Minute)
		if p := r.peer(t, "w1"); p.Endpoint.String() != "198.18.0.7:4000" {
			t.Errorf("a minute later w1 is spoken to at %s", p.Endpoint)
		}
	})
}
