package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// What is no longer a Peer's is cut, once; what another Peer has now is not.
func TestCutAfterAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		s.Peers = []model.Peer{
			{Name: "exit", Key: key("exit"), AllowedIPs: prefixes("0.0.0.0/0"), DefaultRoute: true},
			{Name: "laptop", Key: key("laptop"), AllowedIPs: prefixes("10.5.0.1/32", "10.5.0.2/32")},
		}
		r := start(t, e1(), s, nil)
		defer r.stop()
		r.settle(time.Second)
		cut := func() []string {
			r.kernel.mu.Lock()
			defer r.kernel.mu.Unlock()
			var out []string
			for _, p := range r.kernel.cut {
				out = append(out, p.String())
			}
			r.kernel.cut = nil
			return out
		}
		if got := cut(); len(got) > 0 {
			t.Errorf("cut at the start: %v", got)
		}
		r.cluster.change(func(c *fakeCluster) {
			c.snap.Peers = []model.Peer{{Name: "phone", Key: key("phone"), AllowedIPs: prefixes("10.5.0.2/32")}}
		})
		r.settle(time.Second)
		if got := cut(); !slices.Equal(got, []string{"10.5.0.1/32"}) {
			t.Errorf("cut %v, want 10.5.0.1/32", got)
		}
		r.settle(time.Minute)
		if got := cut(); len(got) > 0 {
			t.Errorf("cut again: %v", got)
		}
	})
}

// One gateway of all speaks for the Peers: it is up, and Peers can reach it.
func TestOneGatewaySpeaksForPeers(t *testing.T) {
	dark, down, east, west := e1(), e1(), e1(), w1()
	dark.Name, dark.Location, dark.Endpoint = "a1", "attic", model.Endpoint{}
	down.Name, down.Location, down.Ready = "b1", "barn", false
	all := plan.Locations(snapshot(dark, down, east, e2(), west))
	for name, want := range map[string]bool{"a1": false, "b1": false, "e1": true, "e2": false, "w1": false} {
		if got := speaksForPeers(all, name); got != want {
			t.Errorf("%s speaks: %v", name, got)
		}
	}
	if lone := plan.Locations(snapshot(dark, down)); !speaksForPeers(lone, "a1") {
		t.Error("nobody speaks where no gateway has an endpoint")
	}
}
