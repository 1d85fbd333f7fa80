package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// podMTU is for underlays of whatever size, everywhere or in one location only: the
// agents say what MTU pods should have, two megabytes pass both ways at once, and
// what is too large is refused at its sender.
func podMTU(t *testing.T, l *lab.Lab, best int) {
	t.Helper()
	for _, name := range []string{"a1", "a3", "b2", "c2"} {
		eventually(t, soon, warns(t, l.Machine(name), "PodMTU", fmt.Sprintf("for pods here is %d", best), fmt.Sprintf("net-conf.json to %d", best+50)))
		text := must(l.Machine(name).AgentGet(t.Context(), "/metrics"))(t)
		if want := fmt.Sprintf("kilo_pod_mtu_bytes{what=\"best\"} %d\n", best); !strings.Contains(text, want) {
			t.Errorf("%s: no %s", name, want)
		}
	}
	for _, pair := range pathPairs {
		transfers(t, l, pair, 5*time.Second)
	}
	// a3 is a member: its packets meet the narrow place on the gateway.
	far := l.Pod("b2").Addr.String()
	ping := func(size int) string {
		out, err := l.Pod("a3").Exec(t.Context(), "/usr/bin/ping", "-c", "3", "-i", "0.2", "-W", "1", "-M", "do", "-s", fmt.Sprint(size-28), far)
		return fmt.Sprint(out, err)
	}
	if out := ping(best); !strings.Contains(out, "3 received") {
		t.Errorf("%d bytes do not pass:\n%s", best, out)
	}
	if out := ping(best + 1); !strings.Contains(out, "mtu = "+fmt.Sprint(best)) && !strings.Contains(out, "mtu="+fmt.Sprint(best)) {
		t.Errorf("nobody says that %d bytes are too many:\n%s", best+1, out)
	}
}

// pathPairs are pods on members and gateways, in public locations and behind NAT.
var pathPairs = [][2]string{{"a3", "b2"}, {"a1", "b1"}, {"b2", "c2"}, {"c1", "a2"}}

// transfers has two megabytes pass from each of two pods to the other.
func transfers(t *testing.T, l *lab.Lab, pair [2]string, limit time.Duration) {
	t.Helper()
	for _, way := range [][2]*lab.Pod{{l.Pod(pair[0]), l.Pod(pair[1])}, {l.Pod(pair[1]), l.Pod(pair[0])}} {
		took, err := fetch(t, way[0], way[1], 2_000_000, limit)
		if err != nil {
			t.Errorf("%s → %s: %v", way[1].Name, way[0].Name, err)
		}
		t.Logf("%s → %s: 2 MB in %s", way[1].Name, way[0].Name, took)
	}
}

// fetch has a pod get n bytes of another, and returns how long that took.
func fetch(t *testing.T, to, from *lab.Pod, n int, limit time.Duration, more ...string) (time.Duration, error) {
	began := time.Now()
	args := append([]string{"/usr/bin/curl", "--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{size_download}",
		"--max-time", fmt.Sprint(limit.Seconds())}, more...)
	out, err := to.Exec(t.Context(), append(args, fmt.Sprintf("http://%s/bytes?n=%d", netip.AddrPortFrom(from.Addr, lab.EchoPort), n))...)
	if err == nil && out != fmt.Sprint(n) {
		err = fmt.Errorf("%s of %d bytes", out, n)
	}
	return time.Since(began), err
}

// Somewhere on the internet packets of more than 1400 bytes vanish, and nobody
// says so. TCP would hang for ever; here it goes on: what was running when it
// began, what begins at that moment, and what begins later, which notices nothing.
func pathThatDropsLargePackets(t *testing.T, l *lab.Lab) {
	// Segments leave the nodes as they will be on the wire: an emulated one would
	// carry, and drop, dozens of them as one.
	for _, n := range l.Nodes() {
		must(n.Shell(t.Context(), "for d in eth0 eth1; do [ ! -e /sys/class/net/$d ] || ip link set $d gso_max_segs 1; done"))(t)
	}
	for _, pair := range pathPairs {
		transfers(t, l, pair, 5*time.Second)
	}
	running := make(chan error, 2)
	for _, way := range [][2]string{{"a3", "b2"}, {"c2", "a1"}} {
		go func() {
			took, err := fetch(t, l.Pod(way[0]), l.Pod(way[1]), 12_000_000, 90*time.Second, "--limit-rate", "1M")
			if err != nil {
				err = fmt.Errorf("running, %s → %s: %w after %s", way[1], way[0], err, took)
			}
			t.Logf("12 MB at 1 MB/s, through the change: %s", took)
			running <- err
		}()
	}
	time.Sleep(3 * time.Second)
	must(l.Internet().Shell(t.Context(), "nft 'table bridge hole { chain large { type filter hook forward priority 0; meta length > 1400 counter drop; }; }'"))(t)
	began := time.Now()
	for _, pair := range pathPairs {
		transfers(t, l, pair, 45*time.Second)
	}
	for range cap(running) {
		if err := <-running; err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"a1", "b1", "c1"} {
		// 1400 less WireGuard's 60 over IPv4, in steps of 16 (the multiple of 16
		// that is largest below 1340).
		eventually(t, soon, warns(t, l.Machine(name), "PathMTU", "1328"))
	}
	t.Logf("all know %s after the change", time.Since(began).Round(time.Second))
	for _, pair := range pathPairs {
		transfers(t, l, pair, 5*time.Second)
	}
	if out := must(l.Internet().Shell(t.Context(), "nft list table bridge hole"))(t); strings.Contains(out, "packets 0 ") {
		t.Errorf("the path dropped nothing: %s", out)
	}
	// The lab's built-in device ends with its agent, and its routes with it: the
	// next one finds out anew.
	ok(t, l.Machine("a1").RestartAgent(t.Context()))
	whole(t, l, soon)
	transfers(t, l, [2]string{"a3", "b2"}, 45*time.Second)
}
