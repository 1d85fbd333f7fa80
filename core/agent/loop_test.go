package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

func jsonOf(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// A gateway comes up, and then nothing happens for ten minutes: no change, no
// write, no probe.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e1(), snapshot(e1(), e2(), w1()), nil)
		defer r.stop()
		r.settle(time.Second)
		p := r.peer(t, "w1")
		if p == nil || p.Endpoint != netip.MustParseAddrPort("203.0.113.9:51820") {
			t.Fatalf("peer w1: %+v", p)
		}
		if got := r.route(t, "10.244.9.0/24"); got == nil || got.Device != "kilo0" || got.Source != netip.MustParseAddr("10.0.0.1") {
			t.Errorf("route to west's pods: %v", got)
		}
		if s := r.Status(context.Background()); !s.Ready || s.Role != "gateway" || s.Location != "east" || len(s.Waiting) > 0 {
			t.Errorf("status: ready %v, role %s, location %q, waiting %q", s.Ready, s.Role, s.Location, s.Waiting)
		}

		r.kernel.Made()
		r.cluster.writes()
		passes := testutil.ToFloat64(r.metrics.reconciles)
		r.settle(10 * time.Minute)
		if made := r.kernel.Made(); len(made) > 0 {
			t.Errorf("changes at rest: %v", made)
		}
		if w := r.cluster.writes(); len(w) > 0 {
			t.Errorf("writes at rest: %+v", w)
		}
		if n := testutil.ToFloat64(r.metrics.reconciles) - passes; n < 19 || n > 21 {
			t.Errorf("%v passes in ten minutes; want one every 30 s", n)
		}
		if r.ether.sockets() > 0 {
			t.Error("probes without an API server in the mesh")
		}
	})
}

// What something else changes is put back within a second; a fight is paced.
func TestDriftIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e1(), snapshot(e1(), e2(), w1()), nil)
		defer r.stop()
		r.settle(time.Second)
		before := r.kernel.Everything()

		r.kernel.RemoveLink("kilo0")
		r.kernel.stir()
		r.settle(time.Second)
		if now := r.kernel.Everything(); now != before {
			t.Errorf("after the link was deleted:\n%s\nwant\n%s", now, before)
		}
		if n := testutil.ToFloat64(r.metrics.drift.WithLabelValues("route")); n == 0 {
			t.Error("repairs of routes are not counted")
		}
		if n := testutil.ToFloat64(r.metrics.drift.WithLabelValues("rule")); n != 0 {
			t.Errorf("%v rules counted as repaired; none was touched", n)
		}

		// Somebody flushes our chain whenever it is there, for a minute.
		r.kernel.Made()
		fights := 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			s, err := r.kernel.Observe(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range s.Filter.Chains {
				if c.Name == "guard" && len(c.Rules) > 0 {
					fights++
					r.kernel.FlushChain("guard")
					r.kernel.stir()
				}
			}
		}
		if most := driftBurst + 60*driftPace + 2; fights > most || fights < 60 {
			t.Errorf("repaired %d times in a minute of fighting; want between 60 and %d", fights, most)
		}
		r.settle(2 * time.Second)
		if now := r.kernel.Everything(); now != before {
			t.Errorf("after the fight:\n%s\nwant\n%s", now, before)
		}
	})
}

// A burst of Node updates is one pass.
func TestBurstIsOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e1(), snapshot(e1(), e2(), w1()), nil)
		defer r.stop()
		r.settle(time.Second)
		passes := testutil.ToFloat64(r.metrics.reconciles)
		for i := range 10 {
			n := w1()
			n.Name, n.UID, n.Key = fmt.Sprintf("w%d", i+2), fmt.Sprint(10+i), key(fmt.Sprint("w", i))
			n.PodPrefixes = prefixes(fmt.Sprintf("10.244.%d.0/24", 20+i))
			n.InternalIPs, n.WireGuardIPs, n.Epoch = prefixes(fmt.Sprintf("192.168.9.%d/24", 20+i)), nil, 0
			r.cluster.setNode(n)
			time.Sleep(10 * time.Millisecond)
		}
		r.settle(time.Second)
		if n := testutil.ToFloat64(r.metrics.reconciles) - passes; n != 1 {
			t.Errorf("%v passes for a burst of ten updates", n)
		}
		if r.route(t, "10.244.29.0/24") == nil {
			t.Error("the last node of the burst has no route")
		}
	})
}

// A CNI that fails to answer changes nothing; new facts do at once.
func TestFactsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e2(), snapshot(e1(), e2(), w1()), nil)
		defer r.stop()
		r.settle(time.Second)
		if got := r.route(t, "10.244.9.0/24"); got == nil || got.Device != "flannel.1" || got.Via != netip.MustParseAddr("10.244.1.0") {
			t.Fatalf("member's route to west: %v", got)
		}
		r.kernel.Made()
		r.cni.change(func(c *fakeCNI) { c.err = errors.New("subnet.env is not there") })
		r.settle(5 * time.Minute)
		if made := r.kernel.Made(); len(made) > 0 {
			t.Errorf("changes because the CNI did not answer: %v", made)
		}
		s := r.Status(context.Background())
		if !strings.Contains(s.Adapter.Error, "subnet.env is not there") || s.Adapter.CNI != "flannel" {
			t.Errorf("adapter status: %+v", s.Adapter)
		}
		if n := testutil.ToFloat64(r.metrics.errors.WithLabelValues("discover")); n == 0 {
			t.Error("failed discoveries are not counted")
		}

		r.cni.change(func(c *fakeCNI) {
			c.err = nil
			c.facts.NextHops = append(c.facts.NextHops[:0:0], c.facts.NextHops...)
			c.facts.NextHops[0].Via = netip.MustParseAddr("10.0.0.1")
			c.facts.NextHops[0].Device = "eth0"
		})
		r.settle(time.Second)
		if got := r.route(t, "10.244.9.0/24"); got == nil || got.Device != "eth0" || got.Via != netip.MustParseAddr("10.0.0.1") {
			t.Errorf("after the CNI's route changed: %v", got)
		}
	})
}

// TC41: what an earlier agent left goes, and not before everything has reported.
func TestNothingIsPrunedEarly(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*rig) // how the second agent starts
		then   func(*rig) // what makes its knowledge whole
	}{
		"no API server, no snapshot": {
			before: func(r *rig) { r.cluster.synced, r.cluster.snap = false, model.Snapshot{} },
			then: func(r *rig) {
				r.cluster.change(func(c *fakeCluster) { c.synced, c.snap = true, snapshot(e1(), e2()) })
			},
		},
		"no API server, an old snapshot": {
			before: func(r *rig) { r.cluster.synced, r.cluster.snap = false, snapshot(e1(), e2()) },
			then:   func(r *rig) { r.cluster.change(func(c *fakeCluster) { c.synced = true }) },
		},
		"no CNI": {
			before: func(r *rig) { r.cni.err, r.cluster.snap = errors.New("not up yet"), snapshot(e1(), e2()) },
			then:   func(r *rig) { r.cni.change(func(c *fakeCNI) { c.err = nil }) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := start(t, e1(), snapshot(e1(), e2(), w1()), nil)
				first.settle(time.Second)
				first.stop()
				before := first.kernel.Everything()
				if first.peer(t, "w1") == nil {
					t.Fatal("the first agent made no peer")
				}

				// Meanwhile west was deleted, and the second agent cannot know.
				second := start(t, e1(), snapshot(e1(), e2(), w1()), func(r *rig) {
					r.kernel.Kernel = first.kernel.Kernel
					c.before(r)
				})
				defer second.stop()
				second.settle(5 * time.Second)
				now := second.kernel.Everything()
				for _, line := range strings.Split(before, "\n") {
					if !strings.Contains(now, line) {
						t.Errorf("removed: %s", line)
					}
				}
				c.then(second)
				second.settle(15 * time.Second)
				if second.peer(t, "w1") != nil || second.route(t, "10.244.9.0/24") != nil {
					t.Errorf("west is still there when all is known:\n%s", second.kernel.Everything())
				}
			})
		})
	}
}

// An agent that is restarted finds everything as it should be.
func TestRestartChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		s.APIServers = []netip.AddrPort{netip.MustParseAddrPort("192.168.9.9:6443")}
		first := start(t, e1(), s, func(r *rig) { r.ether.set(netip.MustParseAddr("10.4.0.2"), true) })
		first.settle(5 * time.Second)
		if first.route(t, "192.168.9.9/32") == nil {
			t.Fatal("the API server's address is not in the tunnel although west answers")
		}
		first.stop()
		first.kernel.Made()

		// The new agent's probes are not answered for two seconds.
		second := start(t, e1(), s, func(r *rig) { r.kernel.Kernel = first.kernel.Kernel })
		defer second.stop()
		second.settle(time.Second)
		second.kernel.stir() // a second pass, before any probe is decided
		second.settle(time.Second)
		second.ether.set(netip.MustParseAddr("10.4.0.2"), true)
		second.settle(time.Minute)
		if made := second.kernel.Made(); len(made) > 0 {
			t.Errorf("changes by the second agent: %v", made)
		}
	})
}

// A userspace device ends with its agent and takes its routes along. What leads
// to the API server then falls through to main, and nothing else does; the next
// agent has it in the tunnel again at once.
func TestDeviceThatEndsWithItsAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		s.APIServers = []netip.AddrPort{netip.MustParseAddrPort("192.168.9.9:6443")}
		west := netip.MustParseAddr("10.4.0.2")
		first := start(t, e1(), s, func(r *rig) { r.ether.set(west, true) })
		first.settle(5 * time.Second)
		first.stop()
		first.kernel.RemoveLink("kilo0")

		var falls []netip.Prefix
		left, err := first.kernel.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range left.Routes {
			switch {
			case o.Table != state.TableOverlay || o.Type == state.Unreachable:
			case o.Type == state.Throw:
				falls = append(falls, o.Dst)
			default:
				t.Errorf("left without its link: %s", o)
			}
		}
		if want := prefixes("192.168.9.9/32"); !slices.Equal(falls, want) {
			t.Errorf("%v fall through to main, want %v", falls, want)
		}

		// No socket opens at an address that is not there yet.
		second := prepare(t, e1(), s, func(r *rig) { r.kernel.Kernel = first.kernel.Kernel })
		second.Kernel = slowly{second.kernel}
		second.prober.open = func(from netip.Addr) (echo, error) {
			now, err := second.kernel.Observe(context.Background())
			if err != nil || len(now.Links) == 0 || !slices.Contains(now.Links[0].Addresses, netip.PrefixFrom(from, from.BitLen())) {
				return nil, fmt.Errorf("no such address (%v)", err)
			}
			return second.ether.open(from)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- second.Run(ctx) }()
		second.settle(100 * time.Millisecond)
		if second.route(t, "192.168.9.9/32") == nil {
			t.Error("the API server's address is not in the tunnel, which was alive when the last agent ended")
		}
		if second.ether.asks(west) == 0 {
			t.Error("nobody was asked: the first probe's turn came before its address was there")
		}
		second.settle(5 * time.Second)
		if got := second.route(t, "192.168.9.9/32"); got != nil {
			t.Errorf("west has not answered for five seconds: %v", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// slowly is a kernel that takes its time for each change.
type slowly struct{ *fakeHost }

func (s slowly) Apply(ctx context.Context, c state.Change) error {
	time.Sleep(time.Millisecond)
	return s.fakeHost.Apply(ctx, c)
}

// What mends the mesh is not cut off by it: the API server's address enters the
// tunnel with the first answered probe and leaves it when none is answered.
func TestProbesOpenAndCloseTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := snapshot(e1(), e2(), w1())
		s.APIServers = []netip.AddrPort{netip.MustParseAddrPort("192.168.9.9:6443")}
		west := netip.MustParseAddr("10.4.0.2")
		r := start(t, e1(), s, nil)
		defer r.stop()
		r.settle(10 * time.Second)
		if got := r.route(t, "192.168.9.9/32"); got != nil {
			t.Errorf("before any answer: %v", got)
		}
		if r.route(t, "10.244.9.0/24") == nil {
			t.Error("west's pods are kept out too")
		}
		if r.ether.from(netip.MustParseAddr("10.4.0.1")) == 0 {
			t.Error("a gateway asks from its WireGuard address")
		}
		r.ether.set(west, true)
		r.settle(1100 * time.Millisecond)
		if r.route(t, "192.168.9.9/32") == nil {
			t.Error("west answers and the API server's address is not in the tunnel")
		}
		r.ether.set(west, false)
		r.settle(5 * time.Second)
		if got := r.route(t, "192.168.9.9/32"); got != nil {
			t.Errorf("west has been silent for five seconds: %v", got)
		}
	})
}

// The node's facts are published once, claims included, and again only when
// they change.
func TestPublishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fresh := e1()
		fresh.Spoken, fresh.Key, fresh.Epoch, fresh.Asked, fresh.WireGuardIPs, fresh.Tunnel, fresh.TunnelMTU = false, model.Key{}, 0, "", nil, "", 0
		r := start(t, e1(), snapshot(fresh, w1()), func(r *rig) { r.kernel = newFakeHost(e1()); r.Agent.Kernel = r.kernel })
		defer r.stop()
		r.settle(20 * time.Second)
		me := r.cluster.me()
		if !me.Spoken || me.Key != key("e1") || me.Location != "east" || me.TunnelMTU != 1420 || me.Tunnel != "kernel" {
			t.Errorf("published: %+v", me)
		}
		if me.Epoch != 1 || len(me.WireGuardIPs) != 1 || me.WireGuardIPs[0] != netip.MustParseAddr("10.4.0.1") {
			t.Errorf("claims: epoch %d, addresses %v", me.Epoch, me.WireGuardIPs)
		}
		if n := len(r.cluster.writes()); n > 3 {
			t.Errorf("%d writes to come up; want at most facts, claim of the task, claim of an address", n)
		}

		// An interface gets another MTU.
		r.kernel.setMTU(1400)
		r.kernel.stir()
		r.settle(time.Second)
		w := r.cluster.writes()
		if len(w) != 1 || w[0].TunnelMTU != 1320 || w[0].Epoch != 1 {
			t.Errorf("after the uplink's MTU changed: %+v", w)
		}

		// The API server is away: the data path does not wait for it.
		r.cluster.change(func(c *fakeCluster) { c.away = true })
		r.kernel.setMTU(1390)
		r.kernel.stir()
		r.settle(time.Second)
		s, _ := r.kernel.Observe(context.Background())
		if len(s.Links) != 1 || s.Links[0].MTU != 1310 {
			t.Errorf("links while the API server is away: %v", s.Links)
		}
		r.cluster.change(func(c *fakeCluster) { c.away = false })
		r.settle(time.Minute)
		if me := r.cluster.me(); me.TunnelMTU != 1310 {
			t.Errorf("published MTU %d after the API server came back", me.TunnelMTU)
		}
	})
}

// A setting by flag is as good as an annotation, except where there is one.
func TestSettingsByFlag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := e2()
		quiet.WireGuardIPs = addrs("10.4.0.3")
		r := start(t, quiet, snapshot(e1(), quiet, w1()), func(r *rig) {
			r.Settings.Leader = true
			r.Settings.ForceEndpoint = endpointAt("198.51.100.2:51820")
			r.Settings.Keepalive = 10 * time.Second
			r.Settings.AllowedLocationIPs = prefixes("192.0.2.0/24")
			r.Settings.Location = "elsewhere"
			r.cluster.inputs.Keepalive = 20 * time.Second
		})
		defer r.stop()
		r.settle(time.Second)
		w := r.cluster.writes()
		if len(w) == 0 {
			t.Fatal("nothing was published")
		}
		got := w[len(w)-1]
		want := model.FromFlags{Leader: true, ForcedEndpoint: true, AllowedLocationIPs: prefixes("192.0.2.0/24")}
		if !reflect.DeepEqual(got.FromFlags, want) {
			t.Errorf("published from flags: %+v, want %+v", got.FromFlags, want)
		}
		if got.Location != "east" || got.Endpoint != endpointAt("198.51.100.2:51820") {
			t.Errorf("published location %q, endpoint %s", got.Location, got.Endpoint)
		}
		// As leader it newly has what the serving gateway has not: that is asking.
		if got.Epoch != 2 {
			t.Errorf("epoch %d; want the claim of a newly wished leader", got.Epoch)
		}
	})
}

// What the API server forbids is named, and the node is not ready.
func TestMissingPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, e1(), snapshot(e1(), e2(), w1()), func(r *rig) { r.cluster.forbids = []string{"patch nodes"} })
		defer r.stop()
		r.settle(time.Second)
		s := r.Status(context.Background())
		if s.Ready || !strings.Contains(strings.Join(s.Waiting, "\n"), "patch nodes") {
			t.Errorf("ready %v, waiting %q; want not ready, and the verb named", s.Ready, s.Waiting)
		}
		if r.peer(t, "w1") == nil {
			t.Error("the data path waits for the permission")
		}
		r.cluster.change(func(c *fakeCluster) { c.forbids = nil })
		r.settle(2 * permissionsEvery)
		if s := r.Status(context.Background()); !s.Ready || len(s.Waiting) > 0 {
			t.Errorf("after it was granted: ready %v, waiting %q", s.Ready, s.Waiting)
		}
		said := r.cluster.said()
		if want := []string{"false Waiting", "true Gateway"}; !slices.Equal(said, want) && !slices.Equal(said, want[1:]) {
			t.Errorf("conditions %q, want %q", said, want)
		}
	})
}

// A link that is a stranger's ends the agent with the sentence that says whose.
func TestStrangersDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stranger := errors.New("interface kilo0 belongs to process boringtun (pid 811)")
		r := prepare(t, e1(), snapshot(e1(), w1()), func(r *rig) {
			r.Device = func(context.Context, int) (Device, error) { return nil, stranger }
		})
		if err := r.Run(t.Context()); !errors.Is(err, stranger) {
			t.Errorf("Run returned %v; want the reason", err)
		}
		if made := r.kernel.Made(); len(made) > 0 {
			t.Errorf("changed all the same: %v", made)
		}
	})
}

// A link that another process makes is waited for, at the start and whenever it
// goes; the node says what it lacks, and its Node only when that lasts.
func TestDeviceOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var there atomic.Bool
		r := start(t, e1(), snapshot(e1(), e2(), w1()), func(r *rig) {
			r.Device = func(context.Context, int) (Device, error) {
				if !there.Load() {
					return nil, fmt.Errorf("interface kilo0 is %w", ErrNotYet)
				}
				return fakeDevice{}, nil
			}
		})
		defer r.stop()
		waits := func(when string) {
			t.Helper()
			s := r.Status(context.Background())
			if s.Ready || !strings.Contains(strings.Join(s.Waiting, "\n"), "interface kilo0 is not there yet") {
				t.Errorf("%s: ready %v, waiting %q", when, s.Ready, s.Waiting)
			}
		}
		ready := func(when string) {
			t.Helper()
			if s := r.Status(context.Background()); !s.Ready || len(s.Waiting) > 0 || len(s.Last.Errors) > 0 {
				t.Errorf("%s: ready %v, waiting %q, errors %q", when, s.Ready, s.Waiting, s.Last.Errors)
			}
		}
		r.settle(2 * time.Second)
		waits("before it is there")
		if r.peer(t, "w1") != nil {
			t.Error("a device was configured that is not there")
		}
		there.Store(true)
		r.kernel.stir()
		r.settle(time.Second)
		ready("it is there")
		if r.peer(t, "w1") == nil {
			t.Error("the device has no peer")
		}

		there.Store(false)
		r.kernel.stir()
		r.settle(failingPatience / 2)
		waits("it went")
		there.Store(true)
		r.kernel.stir()
		r.settle(time.Second)
		ready("it came back")
		if said := r.cluster.said(); !slices.Equal(said, []string{"true Gateway"}) {
			t.Errorf("conditions %q: a process that is restarted is no news", said)
		}

		there.Store(false)
		r.kernel.stir()
		r.settle(3 * failingPatience)
		if said := r.cluster.said(); !slices.Equal(said, []string{"true Gateway", "false Waiting"}) {
			t.Errorf("conditions %q: want it told that it stays away", said)
		}
	})
}

// One change that fails holds up no other, and is tried again soon.
func TestFailedChangeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		r := start(t, e1(), snapshot(e1(), e2(), w1()), func(r *rig) {
			r.kernel.BeforeApply = func(c state.Change) error {
				if set, ok := c.(state.SetRoute); ok && broken.Load() && set.Route.Dst == prefixes("10.244.9.0/24")[0] && set.Route.Type == state.Unicast {
					return errors.New("no buffer space available")
				}
				return nil
			}
		})
		defer r.stop()
		r.settle(5 * time.Second)
		if r.route(t, "192.168.9.9/32") == nil {
			t.Error("the other route is not there either")
		}
		s := r.Status(context.Background())
		if s.Ready || len(s.Last.Errors) == 0 || !strings.Contains(s.Last.Errors[0], "10.244.9.0/24") {
			t.Errorf("ready %v, errors %q", s.Ready, s.Last.Errors)
		}
		broken.Store(false)
		r.settle(8 * time.Second) // the pause has grown to 4 s at most
		if r.route(t, "10.244.9.0/24") == nil {
			t.Error("it was not tried again")
		}
		if s := r.Status(context.Background()); !s.Ready || len(s.Last.Errors) > 0 {
			t.Errorf("ready %v, errors %q", s.Ready, s.Last.Errors)
		}
	})
}

// A first claim waits for the rest of the location to speak, but not for ever.
func TestFirstClaimIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, late := e1(), e2()
		me.Epoch, me.Asked = 0, ""
		late.Spoken = false
		r := start(t, me, snapshot(me, late, w1()), nil)
		defer r.stop()
		r.settle(5 * time.Second)
		if me := r.cluster.me(); me.Epoch != 0 {
			t.Errorf("claimed epoch %d after five seconds while e2 has not spoken", me.Epoch)
		}
		if r.peer(t, "w1") == nil {
			t.Error("traffic waits for the claim")
		}
		r.settle(7 * time.Second)
		if me := r.cluster.me(); me.Epoch != 1 {
			t.Errorf("epoch %d after twelve seconds", me.Epoch)
		}
	})
}

// A gateway that is called not ready for a moment keeps its task: that is what
// every Node looks like when the API server was away. One that stays so loses it.
func TestFailedClaimIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gateway, me := e1(), e2()
		me.Asked = ""
		r := start(t, me, snapshot(gateway, me, w1()), nil)
		defer r.stop()
		r.settle(time.Second)
		gateway.Ready = false
		r.cluster.setNode(gateway)
		r.settle(8 * time.Second)
		gateway.Ready = true
		r.cluster.setNode(gateway)
		r.settle(8 * time.Second)
		if me := r.cluster.me(); me.Epoch != 0 {
			t.Fatalf("claimed epoch %d though the gateway came back after eight seconds", me.Epoch)
		}
		gateway.Ready = false
		r.cluster.setNode(gateway)
		r.settle(8 * time.Second)
		if me := r.cluster.me(); me.Epoch != 0 {
			t.Fatalf("claimed epoch %d: the earlier failure was counted in", me.Epoch)
		}
		r.settle(6 * time.Second)
		if me := r.cluster.me(); me.Epoch != 2 {
			t.Errorf("epoch %d, fourteen seconds after the gateway failed", me.Epoch)
		}
	})
}

// A CNI says that all addresses are its network, so that nothing is masqueraded: what
// is outside of the mesh is outside all the same.
func TestNetworkOfAllAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nat := w1()
		nat.Endpoint = model.Endpoint{}
		r := start(t, e1(), snapshot(e1(), e2(), nat), func(r *rig) { r.cni.facts.ClusterPrefixes = prefixes("0.0.0.0/0") })
		defer r.stop()
		r.settle(time.Second)
		at := netip.MustParseAddrPort("203.0.113.77:40000")
		r.kernel.hear(PeerStatus{Key: key("w1"), Endpoint: at, LastHandshake: time.Now()})
		r.settle(time.Minute)
		if me := r.cluster.me(); me.Discovered[key("w1")] != at || len(me.InternalIPs) != 1 {
			t.Errorf("learned %v, internal addresses %v", me.Discovered, me.InternalIPs)
		}
	})
}

// An endpoint that WireGuard learned is published for the others, if it can be
// one.
func TestLearnedEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nat := w1()
		nat.Endpoint = model.Endpoint{}
		r := start(t, e1(), snapshot(e1(), e2(), nat), nil)
		defer r.stop()
		r.settle(time.Second)
		r.cluster.writes()
		heard := func(at string, ago time.Duration) {
			p := PeerStatus{Key: key("w1"), Endpoint: netip.MustParseAddrPort(at)}
			if ago >= 0 {
				p.LastHandshake = time.Now().Add(-ago)
			}
			r.kernel.hear(p)
			r.settle(time.Minute)
		}
		published := func(when, want string) {
			t.Helper()
			got := ""
			if at, ok := r.cluster.me().Discovered[key("w1")]; ok {
				got = at.String()
			}
			if got != want {
				t.Errorf("%s: published %q, want %q", when, got, want)
			}
		}
		heard("203.0.113.77:40000", -1)
		published("without a handshake", "")
		heard("10.244.2.9:40000", time.Second)
		published("inside a pod prefix", "")
		heard("10.96.0.1:40000", time.Second)
		published("a Service's address", "")
		heard("192.168.9.9:51820", time.Second)
		published("an internal address", "")
		heard("203.0.113.77:40000", time.Second)
		published("after a handshake", "203.0.113.77:40000")
		if n := len(r.cluster.writes()); n != 1 {
			t.Errorf("%d writes for one endpoint", n)
		}
		heard("203.0.113.77:40001", time.Second)
		published("after it roamed", "203.0.113.77:40001")
		// A device that was started anew has heard nobody.
		r.kernel.hear(PeerStatus{Key: key("w1")})
		r.settle(time.Minute)
		published("after the device forgot", "203.0.113.77:40001")
		// What was learned may turn out to be inside the mesh.
		inside := snapshot(e1(), e2(), nat)
		r.cluster.change(func(c *fakeCluster) { c.snap.ServicePrefixes = prefixes("203.0.113.64/26") })
		r.settle(time.Second)
		published("when it is a Service's address", "")
		r.cluster.change(func(c *fakeCluster) { c.snap.ServicePrefixes = inside.ServicePrefixes })
		heard("203.0.113.77:40001", time.Second)
		published("when it is none any more", "203.0.113.77:40001")
		// What publishes an endpoint itself needs nobody else to.
		r.cluster.setNode(w1())
		r.settle(time.Second)
		published("when w1 publishes one", "")
	})
}

// A party is found where somebody else heard it and this node knocked: that is
// learned as soon as what it is heard elsewhere.
func TestLearnedWhereItKnocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nat := w1()
		nat.Endpoint = model.Endpoint{}
		r := start(t, e1(), snapshot(e1(), e2(), nat), nil)
		defer r.stop()
		p := PeerStatus{Key: key("w1"), Endpoint: netip.MustParseAddrPort("203.0.113.77:40000")}
		r.kernel.hear(p)
		r.settle(time.Minute + time.Second) // past a pass by the timer, which is the last for 29 s
		p.LastHandshake = time.Now()
		r.kernel.hear(p)
		r.settle(listenEvery + time.Second)
		if got := r.cluster.me().Discovered[key("w1")]; got.String() != "203.0.113.77:40000" {
			t.Errorf("published %v", got)
		}
	})
}

// --clean-up and a plain end.
func TestEnd(t *testing.T) {
	for name, c := range map[string]struct {
		cleanUp, link bool
		want          string
	}{
		"plain":              {false, false, "all"},
		"clean-up":           {true, false, "link"},
		"clean-up-interface": {true, true, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, e1(), snapshot(e1(), e2(), w1()), func(r *rig) { r.CleanUp, r.CleanUpInterface = c.cleanUp, c.link })
				r.settle(time.Second)
				before, err := r.kernel.Observe(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				r.stop()
				after, err := r.kernel.Observe(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				switch c.want {
				case "all":
					if d := state.Diff(after, before); len(d) > 0 {
						t.Errorf("a plain end changed: %v", d)
					}
				case "link":
					if len(after.Links) != 1 || len(after.Links[0].Tunnel.Peers) > 0 || len(after.Links[0].Addresses) > 0 {
						t.Errorf("links left: %v", after.Links)
					}
					after.Links = nil
					fallthrough
				case "nothing":
					if text := after.String(); text != "" {
						t.Errorf("left:\n%s", text)
					}
				}
				if want := map[bool]int{true: 1, false: 0}[c.cleanUp]; r.cluster.cleared != want {
					t.Errorf("annotations cleared %d times, want %d", r.cluster.cleared, want)
				}
			})
		})
	}
}

// What the snapshot and the node's own inputs both warn of is one warning.
func TestWarningsCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := model.Warning{Kind: "BadAnnotation", Object: "node/e1", Message: "x"}
		other := model.Warning{Kind: "BadAnnotation", Object: "node/w1", Message: "x"}
		r := start(t, e1(), snapshot(e1(), w1()), nil)
		defer r.stop()
		r.cluster.change(func(c *fakeCluster) { c.warned = []model.Warning{bad, other} })
		r.settle(time.Second)
		var said []model.Warning
		for _, w := range r.Status(context.Background()).Warnings {
			if w.Kind == bad.Kind {
				said = append(said, w)
			}
		}
		if !slices.Equal(said, []model.Warning{bad, other}) {
			t.Errorf("/status: %v", said)
		}
		if n := testutil.ToFloat64(r.metrics.warnings.WithLabelValues(bad.Kind)); n != 2 {
			t.Errorf("kilo_warnings counts %v, want 2", n)
		}
	})
}
