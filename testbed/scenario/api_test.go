package scenario

import (
	"maps"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The API server hangs for a minute, or for ten where there is time, and agents are
// restarted meanwhile, on a gateway and on a member: they start from what they
// saved, and the mesh stays whole. When the API server is back, nothing is
// different.
func apiServerAway(t *testing.T, l *lab.Lab) {
	absence := time.Minute
	if everything() {
		absence = 10 * time.Minute
	}
	cp := l.Machine("cp")
	gateways, addresses := gatewaysOf(t, l), wireGuardAddresses(t, l)
	ok(t, cp.SignalDaemon("kube-apiserver", unix.SIGSTOP))
	away := time.Now()
	if _, err := cp.Exec(t.Context(), "/usr/bin/curl", "--silent", "--insecure", "--max-time", "2", "https://127.0.0.1:6443/livez"); err == nil {
		t.Fatal("the API server answers: nothing is tried")
	}

	streams := startStreams(t, l, "b2 a3", "a1 b1", "node/a2 node/b2")
	for _, name := range []string{"c1", "a3"} { // a gateway without an endpoint, a member
		ok(t, l.Machine(name).RestartAgent(t.Context()))
		took := whole(t, l, soon)
		t.Logf("without an API server: whole %s after the restart of %s's agent", took.Round(10*time.Millisecond), name)
		if status := must(l.Machine(name).AgentGet(t.Context(), "/status"))(t); !strings.Contains(status, `"snapshot": "disk"`) {
			t.Errorf("%s did not start from its snapshot:\n%s", name, status)
		}
	}
	time.Sleep(time.Until(away.Add(absence)))
	if m := must(l.Matrix(t.Context()))(t); !m.OK() {
		t.Errorf("after %s without an API server:\n%s", absence, m)
	}
	// Nobody has heard of anything for long: who starts now knows all the same. (Its
	// built-in device goes with it, so it is one that the streams do not pass.)
	ok(t, l.Machine("c1").RestartAgent(t.Context()))
	t.Logf("after %s without an API server: whole %s after the restart of c1's agent", absence, whole(t, l, soon).Round(10*time.Millisecond))

	ok(t, cp.SignalDaemon("kube-apiserver", unix.SIGCONT))
	time.Sleep(20 * time.Second) // Nodes may be called not ready for a while
	for _, s := range streams {
		if stats := must(s.run.Stop(t.Context()))(t); stats.Lost() > 0 {
			t.Errorf("%s, whose agents run or are not in the way: %s", s.name, stats)
		}
	}
	whole(t, l, soon)
	if now := gatewaysOf(t, l); !maps.Equal(gateways, now) {
		t.Errorf("gateways were %v and are %v", gateways, now)
	}
	if now := wireGuardAddresses(t, l); !maps.Equal(addresses, now) {
		t.Errorf("addresses were %v and are %v", addresses, now)
	}
}

// gatewaysOf are the gateways of all locations as cp sees them.
func gatewaysOf(t *testing.T, l *lab.Lab) map[string]string {
	t.Helper()
	gateways := map[string]string{}
	for _, loc := range must(l.Machine("cp").AgentStatus(t.Context()))(t).Locations {
		gateways[loc.Name] = loc.Gateway
	}
	return gateways
}
