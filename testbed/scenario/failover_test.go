package scenario

import (
	"fmt"
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

// A gateway that works hands over, because somebody wants another one, and nobody
// is silent for long. None lost is what it has to become: see docs/failover.md.
func TestGatewayHandsOver(t *testing.T) {
	onRequest(t)
	l := armed(t, lab.Default())
	pairs := [][2]string{{"a3", "b2"}, {"b2", "a3"}, {"a1", "c2"}, {"c1", "a2"}, {"b1", "a1"}, {"a2", "b1"}}
	move := func(what, to string, change func()) {
		t.Helper()
		stop := pings(t, l, pairs)
		time.Sleep(time.Second)
		began := time.Now()
		change()
		eventually(t, 20*time.Second, gatewayIs(t.Context(), l, to[:1], to))
		took := time.Since(began)
		time.Sleep(3 * time.Second)
		for pair, s := range stop() {
			t.Logf("%s: %s: %s", what, pair, s)
			if s.LongestGap > 2*time.Second {
				t.Errorf("%s: %s: silent for %s", what, pair, s.LongestGap)
			}
		}
		t.Logf("%s: %s serves after %s", what, to, took.Round(10*time.Millisecond))
	}
	move("asked for", "a2", func() {
		must(l.Kubectl(t.Context(), "annotate", "node", "a2", "kilo.squat.ai/leader=true"))(t)
	})
	move("asked for", "b2", func() {
		must(l.Kubectl(t.Context(), "annotate", "node", "b2", "kilo.squat.ai/leader=true"))(t)
	})
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
