package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// Where the kernel has no WireGuard, a process beside the agent carries the
// packets. Agents are restarted, killed and kept away for a while, on a gateway
// and on a member, and no ping is lost; the sidecar is adopted, never replaced.
func TestSidecar(t *testing.T) {
	spec := lab.Default()
	spec.Sidecar = true
	l := mesh(t, spec)
	nodes := []*lab.Machine{l.Machine("a1"), l.Machine("a3")} // gateway, member
	serving := map[string]int{}
	for _, n := range l.Agents() {
		serving[n.Name] = n.Daemon(lab.SidecarDaemon)
		if links := held(t, n, n.Daemon("kg")); links != "" {
			t.Errorf("%s: the agent itself holds %s", n.Name, links)
		}
		if links := held(t, n, serving[n.Name]); links != "kilo0" {
			t.Errorf("%s: the sidecar holds %q, want kilo0", n.Name, links)
		}
	}

	stop := pings(t, l, [][2]string{{"a3", "b2"}, {"b2", "a3"}, {"a1", "c1"}, {"b1", "a1"}})
	for _, n := range nodes {
		ok(t, n.RestartAgent(t.Context()))
		ok(t, n.WaitForAgent(t.Context(), 30*time.Second))
		ok(t, n.KillAgent(t.Context()))
		time.Sleep(3 * time.Second)
		ok(t, n.StartAgent(t.Context()))
		ok(t, n.WaitForAgent(t.Context(), 30*time.Second))
	}
	// All at once, as when the nodes' image is replaced.
	for _, n := range l.Agents() {
		ok(t, n.KillAgent(t.Context()))
	}
	time.Sleep(time.Second)
	for _, n := range l.Agents() {
		ok(t, n.StartAgent(t.Context()))
	}
	for _, n := range l.Agents() {
		ok(t, n.WaitForAgent(t.Context(), 30*time.Second))
	}
	time.Sleep(time.Second)
	for what, s := range stop() {
		t.Logf("%s: %s", what, s)
		if s.Lost() > 0 || s.Sent < 200 {
			t.Errorf("%s: %s; want none lost of several hundred", what, s)
		}
	}
	for _, n := range l.Agents() {
		if now := n.Daemon(lab.SidecarDaemon); now != serving[n.Name] {
			t.Errorf("%s: the sidecar is process %d, was %d", n.Name, now, serving[n.Name])
		}
	}
	reachAll(t, l, 42, 56)

	// Without its sidecar an agent says what is missing, and to whom to look,
	// and makes no device of its own.
	for _, n := range nodes {
		ok(t, n.KillDaemon(t.Context(), lab.SidecarDaemon))
		eventually(t, soon, func() error {
			_, err := n.AgentGet(t.Context(), "/readyz")
			if err == nil || !strings.Contains(err.Error(), "interface kilo0 is not there yet") || !strings.Contains(err.Error(), "kg wireguard") {
				return fmt.Errorf("%s: /readyz without a sidecar: %v", n.Name, err)
			}
			return nil
		})
	}
	time.Sleep(2 * time.Second)
	for _, n := range nodes {
		if out, err := n.Exec(t.Context(), "/usr/sbin/ip", "link", "show", "kilo0"); err == nil {
			t.Errorf("%s: somebody made kilo0:\n%s", n.Name, out)
		}
		if text := must(n.Log("kg"))(t); !strings.Contains(text, "interface kilo0 is not there yet") {
			t.Errorf("%s: the agent's log does not say what is missing", n.Name)
		}
	}
	for _, n := range nodes {
		ok(t, n.StartSidecar(t.Context()))
	}
	back := time.Now()
	whole(t, l, soon)
	t.Logf("whole again %.1f s after the sidecars came back", time.Since(back).Seconds())
	for _, n := range nodes {
		if links := held(t, n, n.Daemon("kg")); links != "" {
			t.Errorf("%s: the agent itself holds %s", n.Name, links)
		}
	}
	reachAll(t, l, 42, 56)

	// A deleted interface is the sidecar's to make again.
	must(nodes[0].Exec(t.Context(), "/usr/sbin/ip", "link", "del", "kilo0"))(t)
	whole(t, l, soon)

	// An agent that may make the interface itself, where it is missing, adopts a
	// sidecar's all the same.
	for _, n := range l.Agents() {
		ok(t, n.RestartAgent(t.Context(), "--create-interface=true"))
	}
	whole(t, l, soon)
	for _, n := range l.Agents() {
		if links := held(t, n, n.Daemon("kg")); links != "" {
			t.Errorf("%s: the agent itself holds %s", n.Name, links)
		}
	}

	ok(t, nodes[1].UninstallAgent(t.Context()))
	if out, err := nodes[1].Exec(t.Context(), "/usr/sbin/ip", "link", "show", "kilo0"); err == nil {
		t.Errorf("uninstalled, and kilo0 is there:\n%s", out)
	}
}

// held lists the TUN interfaces that a process holds.
func held(t *testing.T, n *lab.Machine, pid int) string {
	t.Helper()
	if pid == 0 {
		t.Fatalf("%s: no such process", n.Name)
	}
	// Descriptors come and go while one looks: those that are gone by then hold
	// no interface.
	out := must(n.Shell(t.Context(), fmt.Sprintf("cat /proc/%d/fdinfo/* 2>/dev/null | sed -n 's/^iff:[[:space:]]*//p'", pid)))(t)
	names := strings.Fields(out)
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// pings starts a stream of pings between the pods of each pair of nodes; what it
// returns ends them and tells what became of each.
func pings(t *testing.T, l *lab.Lab, pairs [][2]string) (stop func() map[string]lab.PingStats) {
	t.Helper()
	runs := map[string]*lab.PingRun{}
	for _, p := range pairs {
		from, to := l.Pod(p[0]), l.Pod(p[1])
		runs[from.Name+" → "+to.Name] = must(from.StartPing(t.Context(), to.Addr, 20*time.Millisecond))(t)
	}
	return func() map[string]lab.PingStats {
		t.Helper()
		stats := map[string]lab.PingStats{}
		for what, r := range runs {
			stats[what] = must(r.Stop(t.Context()))(t)
		}
		return stats
	}
}
