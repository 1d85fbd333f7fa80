package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// Every node can be reached, and rp_filter is strict. The mesh goes from
// gateways to cross and back, node by node, and is tried in between. Packets are
// carried by sidecars, so that what is lost is lost by the change, and not by
// a device that ends with its agent.
func TestCross(t *testing.T) {
	spec := everyNodePublic()
	spec.Sidecar = true
	l := mesh(t, spec)
	plain := roll(t, l, "location")
	reachAll(t, l, 30, 30)
	before := whatIsOurs(t, l)

	there := roll(t, l, "cross")
	eventually(t, soon, directAcross(t, l))
	reachAll(t, l, 30, 30)
	sourcesAreTrue(t, l)
	for _, s := range []struct {
		name string
		run  func(*testing.T, *lab.Lab)
	}{
		{"a pair that cannot meet", pairThatCannotMeet},
		{"full behind a strict filter", fullBehindStrictFilter},
		{"full", full},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
	back := roll(t, l, "location")

	t.Logf("longest time that a pod did not reach another: %s as agents are restarted, %s on the way to cross, %s on the way back", plain, there, back)
	if there > time.Second || back > time.Second {
		t.Error("the change cuts pods off")
	}
	eventually(t, soon, func() error {
		for name, now := range whatIsOurs(t, l) {
			if now != before[name] {
				return fmt.Errorf("%s held\n%s\nand after cross and back holds\n%s", name, before[name], now)
			}
		}
		return nil
	})
}

// everyNodePublic is a lab of three locations, every node of which has a public
// leg and a pod.
func everyNodePublic() lab.Spec {
	spec := lab.Default()
	spec.Locations = slices.Delete(spec.Locations, 2, 3) // c
	for _, loc := range spec.Locations {
		for i := range loc.Nodes {
			loc.Nodes[i].Public, loc.Nodes[i].Pods = true, 1
		}
	}
	return spec
}

// roll restarts the agents one after the other, with that granularity from then
// on, while every pod pings every other ten times a second. It returns the
// longest time that answers were missing.
func roll(t *testing.T, l *lab.Lab, granularity string) time.Duration {
	t.Helper()
	var longest time.Duration
	for _, n := range l.Agents() {
		streams := startStreams(t, l, podPairs(l)...)
		time.Sleep(500 * time.Millisecond)
		ok(t, n.RestartAgent(t.Context(), "--mesh-granularity="+granularity))
		whole(t, l, soon)
		lost, worst := 0, streams[0]
		var gap time.Duration
		for _, s := range streams {
			stats := must(s.run.Stop(t.Context()))(t)
			lost += stats.Lost()
			if stats.LongestGap > gap {
				gap, worst = stats.LongestGap, s
			}
		}
		t.Logf("%s to %s: %d pings lost in all, nothing of %s for %s", n.Name, granularity, lost, worst.name, gap.Round(time.Millisecond))
		longest = max(longest, gap)
	}
	return longest.Round(time.Millisecond)
}

// podPairs are all pairs of pods of different locations, for startStreams.
func podPairs(l *lab.Lab) []string {
	var pairs []string
	for _, from := range l.Pods() {
		for _, to := range l.Pods() {
			if from.Location != to.Location {
				pairs = append(pairs, from.Node+" "+to.Node)
			}
		}
	}
	return pairs
}

// directAcross is a check for eventually: pods of different locations have two
// nodes between them, the two that they are on.
func directAcross(t *testing.T, l *lab.Lab) func() error {
	return func() error {
		for _, from := range l.Pods() {
			for _, to := range l.Pods() {
				if from.Location == to.Location {
					continue
				}
				if n, err := nodesBetween(t, from, to); err != nil || n != 2 {
					return fmt.Errorf("%s → %s: %d nodes on the way of the answer, want 2 (%v)", from.Name, to.Name, n, err)
				}
			}
		}
		return nil
	}
}

var ttl = regexp.MustCompile(` ttl=(\d+) `)

// nodesBetween is how many nodes forward the answer of a pod's ping: each takes
// one off the 64 that a packet starts with.
func nodesBetween(t *testing.T, from, to *lab.Pod) (int, error) {
	out, err := from.Exec(t.Context(), "/usr/bin/ping", "-n", "-c1", "-W1", to.Addr.String())
	if err != nil {
		return 0, err
	}
	m := ttl.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no TTL in %q", out)
	}
	left, err := strconv.Atoi(m[1])
	return 64 - left, err
}

// Nothing passes between two nodes any more, nor between a node and a gateway:
// those pairs, and no others, take the way by a gateway within seconds, and
// their own link again when it is back.
func pairThatCannotMeet(t *testing.T, l *lab.Lab) {
	for _, other := range []string{"b2", "b1"} {
		from, to := l.Pod("a3"), l.Pod(other)
		streams := startStreams(t, l, "a3 "+other, other+" a3")
		time.Sleep(500 * time.Millisecond)
		ok(t, l.Partition(t.Context(), "a3", other))
		eventually(t, soon, func() error {
			if n, err := nodesBetween(t, from, to); err != nil || n != 3 {
				return fmt.Errorf("a3 → %s: %d nodes, want 3 (%v)", other, n, err)
			}
			return nil
		})
		time.Sleep(300 * time.Millisecond) // an answer after the gap
		for _, s := range streams {
			stats := must(s.run.Stop(t.Context()))(t)
			t.Logf("%s, cut: %s", s.name, stats)
			if stats.LongestGap > 8*time.Second {
				t.Errorf("%s, cut: %s", s.name, stats)
			}
		}
		for _, pair := range [][2]string{{"a3", "b1"}, {"a3", "b2"}, {"a2", "b2"}, {"a1", "b1"}} {
			want := 2
			if pair == [2]string{"a3", other} {
				want = 3
			}
			if n, err := nodesBetween(t, l.Pod(pair[0]), l.Pod(pair[1])); err != nil || n != want {
				t.Errorf("%v, with a3 cut off from %s: %d nodes, want %d (%v)", pair, other, n, want, err)
			}
		}
		silent := func(name string) string { t.Helper(); return annotation(t, l, name, "kilo.squat.ai/silent") }
		if a, b := silent("a3"), silent(other); a != other || b != "a3" {
			t.Errorf("a3 publishes silent=%q, %s %q", a, other, b)
		}
		whole(t, l, soon)

		streams = startStreams(t, l, "a3 "+other, other+" a3")
		time.Sleep(500 * time.Millisecond)
		ok(t, l.HealAll(t.Context()))
		healed := time.Now()
		eventually(t, soon, directAcross(t, l))
		t.Logf("direct again %s after the heal", time.Since(healed).Round(10*time.Millisecond))
		for _, s := range streams {
			stats := must(s.run.Stop(t.Context()))(t)
			t.Logf("%s, healed: %s", s.name, stats)
			if stats.LongestGap > time.Second {
				t.Errorf("%s, healed: %s", s.name, stats)
			}
		}
		eventually(t, soon, func() error {
			if a, b := silent("a3"), silent(other); a != "" || b != "" {
				return fmt.Errorf("healed, a3 publishes silent=%q, %s %q", a, other, b)
			}
			return nil
		})
	}
}

// Full needs a loose filter on a LAN. Where it is strict a node publishes cross
// and says so.
func fullBehindStrictFilter(t *testing.T, l *lab.Lab) {
	a2 := l.Machine("a2")
	ok(t, a2.RestartAgent(t.Context(), "--mesh-granularity=full"))
	whole(t, l, soon)
	if got := annotation(t, l, "a2", "kilo.squat.ai/granularity"); got != "cross" {
		t.Errorf("a2 publishes granularity %q, want cross", got)
	}
	if status := must(a2.AgentGet(t.Context(), "/status"))(t); !strings.Contains(status, "FullNeedsLooseRPFilter") || !strings.Contains(status, "net.ipv4.conf.eth0.rp_filter=2") {
		t.Errorf("no warning in\n%s", status)
	}
	eventually(t, soon, directAcross(t, l))
}

// whatIsOurs is what every node holds of ours, as text.
func whatIsOurs(t *testing.T, l *lab.Lab) map[string]string {
	t.Helper()
	held := map[string]string{}
	for _, n := range l.Agents() {
		held[n.Name] = must(n.Shell(t.Context(), `
			ip -4 rule; ip -6 rule
			ip -4 route show table all proto 107; ip -6 route show table all proto 107
			nft -s list table inet kilo
			wg show kilo0 allowed-ips | tr '\t ' '\n\n' | sort
			wg show kilo0 persistent-keepalive | sort
		`))(t)
	}
	return held
}

// Every node meets every other: those on one LAN by their internal addresses,
// so that nothing of pods or nodes is in clear there. That wants a loose filter,
// as the warning of a node that has a strict one says.
func full(t *testing.T, l *lab.Lab) {
	for _, n := range l.Nodes() {
		must(n.Shell(t.Context(), "sysctl -w net.ipv4.conf.eth0.rp_filter=2"))(t)
	}
	granularityOfAll(t, l, "full")
	eventually(t, soon, directAcross(t, l))
	eventually(t, soon, neighboursMeet(t, l))

	clear := must(l.Router("a").Capture(t.Context(), "lan0", "icmp or udp port 8472"))(t)
	tunnel := must(l.Router("a").Capture(t.Context(), "lan0", "udp port 51820 and src 10.1.0.2 and dst 10.1.0.3"))(t)
	reachAll(t, l, 30, 30)
	sourcesAreTrue(t, l)
	if seen := must(clear.Stop(t.Context()))(t); len(seen) > 0 {
		t.Errorf("in clear on the LAN of a: %q", seen)
	}
	if seen := must(tunnel.Stop(t.Context()))(t); len(seen) == 0 {
		t.Error("nothing of a2 and a3 in a tunnel on the LAN of a: this test sees nothing")
	}
	granularityOfAll(t, l, "cross")
}

// neighboursMeet is a check for eventually: any two nodes of a have a link, by their
// LAN, which leads to the other's address and pods.
func neighboursMeet(t *testing.T, l *lab.Lab) func() error {
	return func() error {
		for _, pair := range [][2]string{{"a1", "a2"}, {"a2", "a1"}, {"a1", "a3"}, {"a3", "a1"}, {"a2", "a3"}, {"a3", "a2"}} {
			here, there := l.Machine(pair[0]), l.Machine(pair[1])
			key := annotation(t, l, there.Name, "kilo.squat.ai/key")
			if got, want := wg(t, l, here.Name, "endpoints")[key], there.Addr.String()+":51820"; got != want {
				return fmt.Errorf("%s has %s at %q, want %s", here.Name, there.Name, got, want)
			}
			for _, to := range []*lab.Place{&there.Place, &l.Pod(there.Name).Place} {
				way := must(here.Exec(t.Context(), "/usr/sbin/ip", "route", "get", to.Addr.String()))(t)
				if !strings.Contains(way, " dev kilo0 ") {
					return fmt.Errorf("%s reaches %s by %s", here.Name, to.Name, way)
				}
			}
		}
		return nil
	}
}

// Where not every node can be reached, pairs meet directly as far as that goes,
// and otherwise by one gateway or by two.
func crossFromBehindNAT(t *testing.T, l *lab.Lab) {
	granularityOfAll(t, l, "cross")
	eventually(t, soon, func() error {
		for pair, want := range map[string]int{
			"a2 b2": 2, "a2 c1": 2, "a2 c2": 2, "a2 b1": 2, "a1 c1": 2,
			"a1 b2": 3, // a1 also forwards for a3, which cannot meet b2
			"a3 b1": 3,
			"a3 b2": 4, "a3 c2": 4,
		} {
			from, to, _ := strings.Cut(pair, " ")
			for _, p := range [][2]*lab.Pod{{l.Pod(from), l.Pod(to)}, {l.Pod(to), l.Pod(from)}} {
				if n, err := nodesBetween(t, p[0], p[1]); err != nil || n != want {
					return fmt.Errorf("%s → %s: %d nodes, want %d (%v)", p[0].Name, p[1].Name, n, want, err)
				}
			}
		}
		return nil
	})
	reachAll(t, l, 42, 56)
	sourcesAreTrue(t, l)
	servicesAcross(t, l)
	granularityOfAll(t, l, "location")
}

// granularityOfAll restarts all agents at once, with that granularity from then on.
func granularityOfAll(t *testing.T, l *lab.Lab, granularity string) {
	t.Helper()
	for _, n := range l.Agents() {
		ok(t, n.RestartAgent(t.Context(), "--mesh-granularity="+granularity))
	}
	whole(t, l, soon)
}
