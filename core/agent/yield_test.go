package agent

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// A disk was copied: w1's agent starts anew with the key of e1, on a device that
// has peers. It must not speak as e1 to anybody, nor say that the key is its own;
// with a key of its own it is back.
func TestKeyOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		first := start(t, w1(), s, nil)
		first.settle(time.Second)
		if first.peer(t, "e1") == nil {
			t.Fatal("w1 has no peer e1 from the start")
		}
		first.stop()

		second := start(t, w1(), s, func(r *rig) {
			r.kernel.Kernel, r.Key = first.kernel.Kernel, key("e1")
		})
		second.settle(time.Second)
		observed, err := second.kernel.Observe(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if peers := observed.Peers(); len(peers) > 0 {
			t.Errorf("under e1's key it speaks to %d peers", len(peers))
		}
		for _, r := range observed.Routes {
			if r.Type == state.Unicast {
				t.Errorf("under e1's key there is %v", r)
			}
		}
		if lookUp := slices.IndexFunc(observed.Routes, func(r state.Route) bool {
			return r.Type == state.Unreachable && r.Dst == netip.MustParsePrefix("10.244.1.0/24")
		}); lookUp < 0 {
			t.Error("nothing keeps packets to e1's pods from leaving in clear")
		}
		if me := second.cluster.me(); me.Spoken || !me.Key.IsZero() {
			t.Errorf("it publishes key %s", me.Key)
		}
		status := second.Status(context.Background())
		if status.Ready || len(status.Waiting) == 0 || !strings.Contains(status.Waiting[0], "node e1") {
			t.Errorf("ready %t, waiting for %q", status.Ready, status.Waiting)
		}
		if !warnsOf(status.Warnings, "DuplicateKey", "node/w1", "node e1") {
			t.Errorf("warnings %v", status.Warnings)
		}
		second.settle(time.Minute)
		second.cluster.writes()
		second.settle(10 * time.Minute)
		if w := second.cluster.writes(); len(w) > 0 {
			t.Errorf("writes at rest: %+v", w)
		}
		second.stop()

		third := start(t, w1(), second.cluster.snap, func(r *rig) { r.kernel.Kernel = first.kernel.Kernel })
		third.settle(time.Second)
		if me := third.cluster.me(); !me.Spoken || me.Key != key("w1") || third.peer(t, "e1") == nil {
			t.Errorf("with a key of its own it publishes %s, peer e1: %v", me.Key, third.peer(t, "e1"))
		}
	})
}

// Without an API server the snapshot on the disk says whose the key is; what an
// earlier agent left on the device goes all the same.
func TestKeyOfAnotherNodeFromDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		first := start(t, w1(), s, nil)
		first.settle(time.Second)
		first.stop()
		second := start(t, w1(), s, func(r *rig) {
			r.kernel.Kernel, r.Key = first.kernel.Kernel, key("e1")
			r.cluster.synced = false
		})
		second.settle(time.Second)
		observed, err := second.kernel.Observe(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if peers := observed.Peers(); len(peers) > 0 {
			t.Errorf("under e1's key it speaks to %d peers", len(peers))
		}
	})
}

// What an agent elsewhere holds is not claimed beside it, so whoever looks later
// sees one claim; when the other lets go it is.
func TestWhatAnotherNodeHoldsIsNotClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		thief := w1()
		thief.InternalIPs, thief.PodPrefixes = nil, nil // as Resolve leaves it
		taken := e2()
		taken.InternalIPs, taken.PodPrefixes = prefixes("192.168.9.9/24"), prefixes("10.244.8.0/23")
		r := start(t, w1(), snapshot(e1(), taken, thief), nil)
		r.settle(time.Second)
		if me := r.cluster.me(); len(me.InternalIPs) > 0 || len(me.PodPrefixes) > 0 {
			t.Errorf("it claims %v and %v", me.InternalIPs, me.PodPrefixes)
		}
		status := r.Status(context.Background())
		for kind, says := range map[string]string{"DuplicateInternalIP": "192.168.9.9", "OverlappingPodPrefix": "10.244.9.0/24 overlaps 10.244.8.0/23"} {
			if !warnsOf(status.Warnings, kind, "node/w1", says) || !warnsOf(status.Warnings, kind, "node/w1", "node e2") {
				t.Errorf("no warning %s that says %q: %v", kind, says, status.Warnings)
			}
		}
		r.cluster.setNode(e2())
		r.settle(time.Second)
		if me := r.cluster.me(); !slices.Equal(me.InternalIPs, w1().InternalIPs) || !slices.Equal(me.PodPrefixes, w1().PodPrefixes) {
			t.Errorf("e2 let go, and w1 publishes %v and %v", me.InternalIPs, me.PodPrefixes)
		}
		// What is only guessed of a node without an agent is nobody's.
		silent := e2()
		silent.Spoken, silent.Key, silent.InternalIPs, silent.PodPrefixes = false, model.Key{}, w1().InternalIPs, w1().PodPrefixes
		r.cluster.setNode(silent)
		r.settle(time.Second)
		if me := r.cluster.me(); len(me.InternalIPs) != 1 || len(me.PodPrefixes) != 1 {
			t.Errorf("to a node without an agent it yields: %v, %v", me.InternalIPs, me.PodPrefixes)
		}
	})
}

// Whoever writes over a node's WireGuard address, or takes it off its Node, moves it
// not: the agent puts it back, unless another node took it meanwhile.
func TestWireGuardAddressIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me := e1()
		me.WireGuardIPs = addrs("10.4.0.7") // not the lowest that is free
		r := start(t, me, snapshot(me, e2(), w1()), nil)
		r.settle(time.Second)
		for _, written := range [][]netip.Addr{nil, addrs("10.4.0.0"), addrs("10.4.9.9"), addrs("192.0.2.1")} {
			now := *r.cluster.me()
			now.WireGuardIPs = written
			r.cluster.setNode(now)
			r.settle(2 * time.Second)
			if got := r.cluster.me().WireGuardIPs; !slices.Equal(got, me.WireGuardIPs) {
				t.Errorf("%v was written, and %v is published", written, got)
			}
		}
		r.stop()

		// A second agent has no such memory; what it reads back counts.
		thief := w1()
		thief.WireGuardIPs = me.WireGuardIPs
		now := me
		now.WireGuardIPs = nil // as Resolve leaves it
		second := start(t, me, snapshot(now, e2(), thief), nil)
		second.settle(2 * time.Second)
		if got := second.cluster.me().WireGuardIPs; len(got) != 1 || got[0] == thief.WireGuardIPs[0] {
			t.Errorf("w1 has %v, and e1 publishes %v", thief.WireGuardIPs, got)
		}
	})
}

func warnsOf(warnings []model.Warning, kind, object, says string) bool {
	return slices.ContainsFunc(warnings, func(w model.Warning) bool {
		return w.Kind == kind && w.Object == object && strings.Contains(w.Message, says)
	})
}

// Who lost an address to another node and took the next stays with that one,
// although the first is free again before anything was read back. Two nodes that
// both went back would meet there again.
func TestAnotherWireGuardAddressIsKept(t *testing.T) {
	c := &Config{Node: "e1", Key: key("e1"), Gateways: 2, Interface: "kilo0"}
	me, other := e1(), w1()
	me.WireGuardIPs, other.WireGuardIPs = nil, addrs("10.4.0.1") // as Resolve has it: the other one had it first
	m := memory{wireGuard: addrs("10.4.0.1")}
	for _, theirs := range []string{"10.4.0.1", "10.4.0.3"} {
		other.WireGuardIPs = addrs(theirs)
		s := snapshot(me, other)
		mesh := plan.NewMesh(s)
		d := decision{memory: m}
		c.addresses(&world{snapshot: s, synced: true}, s.Node("e1"), mesh, &d)
		if got := d.published.WireGuardIPs; !slices.Equal(got, addrs("10.4.0.2")) {
			t.Errorf("the other one has %s: claims %v, want 10.4.0.2", theirs, got)
		}
		m = d.memory
	}
}
