package scenario

import (
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// Flannel is restarted under us, by its own process id, on a gateway and on a
// member; and loses its device, as after a change of its configuration. The
// mesh is whole again without any agent being restarted.
func flannelRestarted(t *testing.T, l *lab.Lab) {
	for _, name := range []string{"a1", "a3"} {
		n := l.Machine(name)
		agent, flannel := n.Daemon("kg"), n.Daemon("flanneld")

		ok(t, n.RestartFlannel(t.Context()))
		if n.Daemon("flanneld") == flannel {
			t.Fatalf("%s: flanneld is process %d as before", name, flannel)
		}
		t.Logf("%s: whole %s after Flannel's restart", name, whole(t, l, soon).Round(10*time.Millisecond))

		ok(t, n.KillDaemon(t.Context(), "flanneld"))
		must(n.Shell(t.Context(), "ip link del flannel.1"))(t)
		if l.Pod(name).Ping(t.Context(), l.Pod("b2").Addr) == nil && name == "a3" {
			t.Errorf("%s reaches another location without a way to its gateway", name)
		}
		ok(t, n.RestartFlannel(t.Context()))
		t.Logf("%s: whole %s after Flannel made its device anew", name, whole(t, l, soon).Round(10*time.Millisecond))

		if n.Daemon("kg") != agent {
			t.Errorf("%s: the agent is process %d, was %d", name, n.Daemon("kg"), agent)
		}
	}
	sourcesAreTrue(t, l)
}
