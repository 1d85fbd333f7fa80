package kerneltest_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

var key = model.Key{1, 2, 3}

func TestSuite(t *testing.T) {
	kerneltest.Suite(t, func(*testing.T) kerneltest.Fixture { return kerneltest.New("kilo0", key) })
}

func tunnel(peers ...state.Peer) state.Link {
	return state.Link{Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Tunnel: &state.Tunnel{Key: key, Port: 51820, Peers: peers}}
}

// What Linux would do and the design forbids.
func TestRefusesWhatIsNotOurs(t *testing.T) {
	k := kerneltest.New("kilo0", key)
	k.AddLink("eth0", netip.MustParsePrefix("10.0.0.1/24"))
	dst := netip.MustParsePrefix("10.244.9.0/24")
	other := tunnel()
	other.Tunnel.Key = model.Key{9}
	wg1 := tunnel()
	wg1.Name = "wg1"
	before := k.Everything()
	for _, c := range []state.Change{
		state.SetRoute{Route: state.Route{Table: state.TableMain, Dst: dst, Type: state.Unicast, Device: "eth0"}},
		state.DeleteRoute{Route: state.Route{Table: state.TableMain, Dst: netip.MustParsePrefix("10.0.0.0/24"), Type: state.Unicast, Device: "eth0"}},
		state.SetRoute{Route: state.Route{Table: state.TableOverlay, Dst: netip.MustParsePrefix("10.244.9.7/24"), Type: state.Unreachable}},
		state.SetRoute{Route: state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: "eth0", Via: netip.MustParseAddr("fd00::1"), OnLink: true}},
		state.SetRoute{Route: state.Route{Table: state.TableOverlay, Dst: dst, Type: 6}}, // RTN_BLACKHOLE,
		state.AddRule{Rule: state.Rule{Priority: 100, Table: state.TableOverlay}},
		state.AddRule{Rule: state.Rule{Priority: state.PriorityOverlay, Table: 52}},
		state.SetLink{Link: state.Link{Name: "eth0", Kind: "veth", MTU: 1400}},
		state.SetLink{Link: wg1},
		state.SetLink{Link: other},
		state.DeleteLink{Name: "eth0"},
		state.SetPeer{Link: "eth0", Peer: state.Peer{Key: model.Key{9}}, Create: true},
		state.SetFilter{Filter: state.Filter{Sets: []state.Set{{Name: "remote4", Elements: []netip.Prefix{dst, dst}}}}},
	} {
		if err := k.Apply(context.Background(), c); err == nil {
			t.Errorf("%s was not refused", c)
		}
	}
	if after := k.Everything(); after != before {
		t.Errorf("changed:\n%s\nwas:\n%s", after, before)
	}
	if made := k.Made(); made != nil {
		t.Errorf("made: %v", made)
	}
}

func TestAPeerRoamsAndFallsSilent(t *testing.T) {
	k := kerneltest.New("kilo0", key)
	w1 := state.Peer{Key: model.Key{9}, Endpoint: netip.MustParseAddrPort("203.0.113.9:51820")}
	there := netip.MustParseAddrPort("198.51.100.7:4000")
	if k.Handshake(w1.Key, there) || k.Silence(w1.Key) {
		t.Error("a peer that is not there was heard")
	}
	wanted := state.State{Links: []state.Link{tunnel(w1)}}
	now := func() state.Peer {
		t.Helper()
		report, err := apply.Run(context.Background(), k, wanted)
		if err != nil {
			t.Fatal(err)
		}
		return report.Now.Links[0].Tunnel.Peers[0]
	}
	if p := now(); p.Alive || p.Endpoint != w1.Endpoint {
		t.Errorf("at first: %s", p)
	}
	k.Handshake(w1.Key, there)
	if p := now(); !p.Alive || p.Endpoint != there {
		t.Errorf("heard from %s: %s", there, p)
	}
	k.Silence(w1.Key)
	if p := now(); p.Alive || p.Endpoint != w1.Endpoint {
		t.Errorf("silent: %s", p)
	}
}

func TestFaultsOnDemand(t *testing.T) {
	k := kerneltest.New("kilo0", key)
	broken := errors.New("broken")
	k.BeforeApply = func(state.Change) error { return broken }
	k.AfterObserve = func(s *state.State) error { s.Links = nil; return broken }
	if err := k.Apply(context.Background(), state.SetLink{Link: tunnel()}); !errors.Is(err, broken) {
		t.Errorf("apply: %v", err)
	}
	if _, err := k.Observe(context.Background()); !errors.Is(err, broken) {
		t.Errorf("observe: %v", err)
	}
	k.BeforeApply, k.AfterObserve = nil, nil
	if s, err := k.Observe(context.Background()); err != nil || len(s.Links) != 0 {
		t.Errorf("a Change that failed was made: %v\n%s", err, s)
	}
}
