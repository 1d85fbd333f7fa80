package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A gateway loses power, and the one that stands by takes over before anybody
// notices: the longest silence between pods of members, and with the new gateway's
// own, is within the limits. The old one comes back, and nothing changes.
func TestGatewayLosesPower(t *testing.T) {
	onRequest(t)
	t.Run("flannel", func(t *testing.T) { gatewaysLosePower(t, armed(t, lab.Default())) })
	for _, mode := range ciliumModes()[:2] {
		t.Run(mode.name, func(t *testing.T) {
			spec := lab.Default()
			mode.set(&spec)
			gatewaysLosePower(t, armed(t, spec))
		})
	}
}

func gatewaysLosePower(t *testing.T, l *lab.Lab) {
	for _, c := range []struct {
		off   string
		pairs [][2]string
	}{
		{"a1", [][2]string{{"a3", "b2"}, {"b2", "a3"}, {"a2", "c2"}, {"c1", "a3"}, {"b1", "a2"}}},
		{"b1", [][2]string{{"a3", "b2"}, {"b2", "c1"}}},
		{"c1", [][2]string{{"a3", "c2"}, {"c2", "b2"}}},
	} {
		stop := pings(t, l, c.pairs)
		time.Sleep(time.Second)
		ok(t, l.Machine(c.off).PowerOff(t.Context()))
		time.Sleep(4 * time.Second)
		for what, s := range stop() {
			t.Logf("%s off: %s: %s", c.off, what, s)
			if s.LongestGap > 3*time.Second {
				t.Errorf("%s off: %s: silent for %s", c.off, what, s.LongestGap)
			}
		}
		ok(t, l.Machine(c.off).PowerOn(t.Context()))
		back := time.Now()
		whole(t, l, 60*time.Second)
		t.Logf("%s is back: whole after %s", c.off, time.Since(back).Round(10*time.Millisecond))
		if err := gatewayIs(t.Context(), l, c.off[:1], fmt.Sprintf("%c2", c.off[0]))(); err != nil {
			t.Error(err)
		}
	}
}

// A gateway that works hands over, because somebody wants another one, and back, and
// nothing is lost between pods or nodes, those of the two gateways among them. A
// machine that does not get to it in time loses some, so it is most changes that have
// to be without any loss.
func TestGatewayHandsOver(t *testing.T) {
	onRequest(t)
	l := armed(t, lab.Default())
	pods := [][2]string{{"a3", "b2"}, {"b2", "a3"}, {"a1", "c2"}, {"c1", "a2"}, {"b1", "a1"}, {"a2", "b1"}}
	nodes := [][2]string{{"a2", "b1"}, {"b1", "a1"}, {"b2", "a3"}, {"a3", "b2"}}
	changes, clean := 0, 0
	move := func(to, from string) {
		t.Helper()
		stop := pings(t, l, pods)
		runs := map[string]*lab.PingRun{}
		for _, p := range nodes {
			runs["node "+p[0]+" → node "+p[1]] = must(l.Machine(p[0]).StartPing(t.Context(), l.Machine(p[1]).Addr, 20*time.Millisecond))(t)
		}
		time.Sleep(time.Second)
		must(l.Kubectl(t.Context(), "annotate", "node", from, "kilo.squat.ai/leader-"))(t)
		must(l.Kubectl(t.Context(), "annotate", "node", to, "kilo.squat.ai/leader=true"))(t)
		began := time.Now()
		eventually(t, 20*time.Second, gatewayIs(t.Context(), l, to[:1], to))
		took := time.Since(began)
		time.Sleep(2 * time.Second)
		stats := stop()
		for what, r := range runs {
			stats[what] = must(r.Stop(t.Context()))(t)
		}
		lost := 0
		for _, pair := range slices.Sorted(maps.Keys(stats)) {
			s := stats[pair]
			t.Logf("to %s: %s: %s", to, pair, s)
			lost += s.Lost()
			if s.LongestGap > 2*time.Second {
				t.Errorf("to %s: %s: silent for %s", to, pair, s.LongestGap)
			}
		}
		t.Logf("%s serves after %s, %d packets lost", to, took.Round(10*time.Millisecond), lost)
		if changes++; lost == 0 {
			clean++
		}
	}
	for range 3 {
		move("a2", "a1")
		move("b2", "b1")
		move("a1", "a2")
		move("b1", "b2")
	}
	if 2*clean <= changes {
		t.Errorf("%d of %d changes lost nothing, want more than half", clean, changes)
	}
}

// armed is a lab whose agents speak of failover, with a session between any two
// that hold a slot.
func armed(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	spec.AgentFlags = append(slices.Clone(spec.AgentFlags), "--failover-port=51829")
	l := mesh(t, spec)
	for _, location := range []string{"a", "b", "c"} {
		eventually(t, 30*time.Second, gatewayIs(t.Context(), l, location, location+"1"))
	}
	// Those that stand by have sessions with gateways everywhere, also from behind
	// one NAT router to behind another.
	eventually(t, 60*time.Second, func() error {
		for _, n := range []string{"a2", "b2", "c2"} {
			for line := range strings.Lines(must(l.Machine(n).Exec(t.Context(), "/usr/bin/wg", "show", "all", "latest-handshakes"))(t)) {
				if f := strings.Fields(line); len(f) == 3 && f[2] == "0" {
					return fmt.Errorf("%s has no session with %s on %s", n, f[1], f[0])
				}
			}
		}
		return nil
	})

	return l
}
