package apply_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-multierror"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

var key = model.Key{1, 2, 3}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// member is a node of location east that reaches west through its gateway,
// and is ready to serve itself.
func member() state.State {
	return state.State{
		Links: []state.Link{{
			Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Addresses: []netip.Prefix{prefix("10.4.0.1/32")},
			Tunnel: &state.Tunnel{Key: key, Port: 51820, Mark: state.Mark, Peers: []state.Peer{
				{Name: "node/w1", Key: model.Key{9}, Endpoint: netip.MustParseAddrPort("203.0.113.9:51820"), AllowedIPs: []netip.Prefix{prefix("10.244.9.0/24")}},
			}},
		}},
		Routes: []state.Route{
			{Table: state.TableOverlay, Dst: prefix("10.244.9.0/24"), Type: state.Unicast, Device: "lan0", Via: netip.MustParseAddr("10.0.0.9")},
			{Table: state.TableOverlay, Dst: prefix("10.244.9.0/24"), Type: state.Unreachable, Metric: state.MetricLast},
		},
		Rules:  []state.Rule{{Priority: state.PriorityOverlay, Invert: true, Mark: state.Mark, Table: state.TableOverlay}},
		Filter: state.Filter{Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "postrouting", Priority: 300}}},
	}
}

func newKernel() *kerneltest.Kernel {
	k := kerneltest.New("kilo0", key)
	k.AddLink("lan0", prefix("10.0.0.1/24"))
	return k
}

func run(t *testing.T, k apply.Kernel, wanted state.State) apply.Report {
	t.Helper()
	report, err := apply.Run(context.Background(), k, wanted)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func lines(changes []state.Change) string {
	var b strings.Builder
	for _, c := range changes {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

func TestAddsBeforeItRemovesAndSaysWhatIsTrue(t *testing.T) {
	k := newKernel()
	run(t, k, member())
	k.Made()

	// West's pods move from 9 to 8.
	wanted := member()
	wanted.Links[0].Tunnel.Peers[0].AllowedIPs[0] = prefix("10.244.8.0/24")
	for i := range wanted.Routes {
		wanted.Routes[i].Dst = prefix("10.244.8.0/24")
	}
	report := run(t, k, wanted)
	const order = `set route table 1107 unreachable 10.244.8.0/24 metric 4294967295
set peer node/w1 (CQAA…AAA=) on kilo0 allowed +10.244.8.0/24
set route table 1107 10.244.8.0/24 via 10.0.0.9 dev lan0
delete route table 1107 10.244.9.0/24 via 10.0.0.9 dev lan0
set peer node/w1 (CQAA…AAA=) on kilo0 allowed = 10.244.8.0/24
delete route table 1107 unreachable 10.244.9.0/24 metric 4294967295
`
	if got := lines(k.Made()); got != order {
		t.Errorf("made:\n%s\nwant:\n%s", got, order)
	}
	if got := lines(report.Done); got != order || !report.Changed() || !report.Complete {
		t.Errorf("reported:\n%s\nwant:\n%s", report, order)
	}
	wanted.Links[0].Tunnel.Peers[0].Name = ""
	if got, want := report.Now.String(), wanted.String(); got != want {
		t.Errorf("now:\n%s\nwant:\n%s", got, want)
	}

	report = run(t, k, wanted)
	if report.Changed() || report.String() != "" || k.Made() != nil {
		t.Errorf("at rest, yet changed:\n%s", report)
	}
	if report.Now.String() != wanted.String() {
		t.Errorf("at rest, now is:\n%s", report.Now)
	}
}

func TestGoesOnAfterFailures(t *testing.T) {
	k := newKernel()
	wanted := member()
	bad := state.Route{Table: state.TableOverlay, Dst: prefix("10.99.0.0/24"), Type: state.Unicast, Device: "eth7"}
	wanted.Routes = append(wanted.Routes, bad)
	k.BeforeApply = func(c state.Change) error {
		if _, ok := c.(state.SetPeer); ok {
			return errors.New("no such device in memory")
		}
		return nil
	}
	report, err := apply.Run(context.Background(), k, wanted)

	var all *multierror.Error
	if !errors.As(err, &all) || len(all.Errors) != 2 || len(report.Failed) != 2 {
		t.Fatalf("two things were to fail: %v\n%s", err, report)
	}
	if !errors.Is(err, syscall.ENODEV) {
		t.Errorf("the kernel's own error is lost: %v", err)
	}
	for _, words := range []string{"2 errors: set peer node/w1", "no such device in memory; set route table 1107 10.99.0.0/24 dev eth7: ", `dev "eth7"`} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("error %q does not say %q", err, words)
		}
	}
	var f *apply.Failure
	if !errors.As(report.Failed[1], &f) || f.Change != (state.SetRoute{Route: bad}) {
		t.Errorf("failed: %v", report.Failed)
	}
	// All else is there, and Now says so.
	want := member()
	want.Links[0].Tunnel.Peers = nil
	if got := report.Now.String(); got != want.String() {
		t.Errorf("now:\n%s\nwant:\n%s", got, want)
	}
	for _, start := range []string{"done: add rule 107", "failed: set peer node/w1"} {
		if !strings.Contains(report.String(), start) {
			t.Errorf("report does not say %q:\n%s", start, report)
		}
	}
	// And the next run, with nothing in its way, does the rest.
	k.BeforeApply = nil
	run(t, k, member())
}

// What would be cut off by a removal is not, if what was to take its place failed.
func TestARemovalWaitsForItsReplacement(t *testing.T) {
	k := newKernel()
	run(t, k, member())
	wanted := member()
	wanted.Routes[0].Metric = 5                      // the same destination, another way
	wanted.Rules[0].Mark = 0x2000                    // another rule of the same priority
	wanted.Links[0].Tunnel.Peers[0].Key = key9(0xee) // another peer for the same prefixes
	k.BeforeApply = func(c state.Change) error {
		switch c.(type) {
		case state.SetRoute, state.AddRule, state.SetPeer:
			return errors.New("not today")
		}
		return nil
	}
	report, err := apply.Run(context.Background(), k, wanted)
	if err == nil || len(report.Failed) != 3 || len(report.Held) != 2 {
		t.Fatalf("three were to fail, two to be held: %v\n%s", err, report)
	}
	want := member()
	// A peer that is not wanted loses its access all the same.
	want.Links[0].Tunnel.Peers = nil
	if got := report.Now.String(); got != want.String() {
		t.Errorf("now:\n%s\nwant:\n%s", got, want)
	}
	if !strings.Contains(report.String(), "held: delete rule 107 inet not fwmark 0x1000 lookup 1107: what would take its place failed") {
		t.Errorf("report:\n%s", report)
	}
	k.BeforeApply = nil
	run(t, k, wanted)
}

func key9(b byte) model.Key { return model.Key{b} }

// What is missing from a partial observation is not absent, and what else is
// there is not to be judged by it.
func TestRemovesNothingOnAPartialObservation(t *testing.T) {
	k := newKernel()
	run(t, k, member())
	if !k.Handshake(model.Key{9}, netip.MustParseAddrPort("198.51.100.7:4000")) {
		t.Fatal("no peer w1")
	}
	k.Made()
	netlinkFails := errors.New("netlink: interrupted")
	k.AfterObserve = func(s *state.State) error {
		s.Routes = s.Routes[:1]
		s.Links[0].Tunnel = nil
		s.Filter = state.Filter{}
		return netlinkFails
	}
	wanted := member()
	wanted.Routes[0].Dst = prefix("10.244.8.0/24")
	wanted.Rules = nil
	wanted.Filter = state.Filter{}
	report, err := apply.Run(context.Background(), k, wanted)
	if !errors.Is(err, netlinkFails) || report.Complete {
		t.Errorf("the observation was not complete: %v\n%s", err, report)
	}
	for _, c := range k.Made() {
		switch c := c.(type) {
		case state.DeleteLink, state.DeletePeer, state.DeleteRoute, state.DeleteRule:
			t.Errorf("removed: %s", c)
		case state.SetPeer:
			if c.ReplaceAllowedIPs || c.SetEndpoint {
				t.Errorf("patched: %s", c)
			}
		}
	}
	if len(report.Held) == 0 {
		t.Errorf("the rule was to be held:\n%s", report)
	}
	k.AfterObserve = nil
	now, err := k.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(now.Routes) != 3 || len(now.Rules) != 1 || now.Filter.IsEmpty() {
		t.Errorf("something was removed, or not added:\n%s", now)
	}
	if p := now.Links[0].Tunnel.Peers[0]; p.Endpoint.String() != "198.51.100.7:4000" {
		t.Errorf("a live peer was moved to %s", p.Endpoint)
	}
	// What else would take away is held too.
	k.AfterObserve = func(s *state.State) error { return netlinkFails }
	wanted.Links[0].Tunnel.Peers[0].AllowedIPs = nil
	if _, err = apply.Run(context.Background(), k, wanted); !errors.Is(err, netlinkFails) || k.Made() != nil {
		t.Errorf("an allowed IP or the filter went: %v", err)
	}
	k.AfterObserve = nil
	// Seen whole again, the rest goes.
	report = run(t, k, wanted)
	if len(report.Now.Routes) != 2 || len(report.Now.Rules) != 0 || !report.Now.Filter.IsEmpty() {
		t.Errorf("left:\n%s", report.Now)
	}
}

func TestStopsBetweenTwoChanges(t *testing.T) {
	k := newKernel()
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	k.BeforeApply = func(state.Change) error {
		if n++; n == 2 {
			cancel()
		}
		return nil
	}
	report, err := apply.Run(ctx, k, member())
	if !errors.Is(err, context.Canceled) || len(report.Done) != 2 || len(report.Held) != 4 || report.Complete {
		t.Errorf("was to stop after two: %v\n%s", err, report)
	}
	if got := len(k.Made()); got != 2 {
		t.Errorf("%d changes made", got)
	}
	report, err = apply.Run(ctx, k, member())
	if !errors.Is(err, context.Canceled) || report.Changed() {
		t.Errorf("with ctx at its end: %v\n%s", err, report)
	}
}

// When a device is missing, every route through it fails: the message stays short.
func TestManyErrorsAreCounted(t *testing.T) {
	k := newKernel()
	var wanted state.State
	for i := range 100 {
		wanted.Routes = append(wanted.Routes, state.Route{Table: state.TableOverlay, Dst: prefix(fmt.Sprintf("10.7.%d.0/24", i)), Type: state.Unicast, Device: "kilo0"})
	}
	report, err := apply.Run(context.Background(), k, wanted)
	if err == nil || len(report.Failed) != 100 {
		t.Fatalf("all were to fail: %v", err)
	}
	if s := err.Error(); !strings.HasPrefix(s, "100 errors: set route table 1107 10.7.0.0/24 dev kilo0: ") || !strings.HasSuffix(s, "; and 92 more") || strings.Contains(s, "\n") {
		t.Errorf("the error is %q", s)
	}
}
