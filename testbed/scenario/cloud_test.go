package scenario

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A location of two subnets in a cloud, whose network drops what is not from and
// to its machines' own addresses; and Flannel with another VNI than its usual
// one, later than the agents, and made anew.
func TestCloud(t *testing.T) {
	spec := lab.Default()
	spec.Flannel.VNI = 42
	inACloud(&spec)
	l := upWith(t, lab.Options{Name: labName(t), HoldAgents: true}, spec)
	foreignAddressesAreDropped(t, l)

	late := []*lab.Machine{l.Machine("a1"), l.Machine("a3")}
	for _, n := range late {
		ok(t, n.KillDaemon(t.Context(), "flanneld"))
		must(n.Shell(t.Context(), "ip link del flannel.42; rm /run/flannel/subnet.env"))(t)
	}
	ok(t, l.StartAgents(t.Context()))
	for _, n := range late {
		eventually(t, soon, func() error {
			_, err := n.AgentGet(t.Context(), "/readyz")
			if err == nil || !strings.Contains(err.Error(), "waiting for /run/flannel/subnet.env") {
				return fmt.Errorf("%s, without Flannel: %v", n.Name, err)
			}
			return nil
		})
		ok(t, n.RestartFlannel(t.Context()))
	}
	t.Logf("whole %s after Flannel's start", whole(t, l, soon).Round(10*time.Millisecond))
	reachAll(t, l, 42, 56)
	sourcesAreTrue(t, l)
	servicesAcross(t, l)

	for _, n := range late {
		ok(t, n.KillDaemon(t.Context(), "flanneld"))
		must(n.Shell(t.Context(), "ip link del flannel.42"))(t)
		ok(t, n.RestartFlannel(t.Context()))
		t.Logf("%s: whole %s after Flannel made its device anew", n.Name, whole(t, l, soon).Round(10*time.Millisecond))
	}
	reachAll(t, l, 42, 56)
}

// The control: without an encapsulation a pod's packet arrives neither in
// another subnet nor in its own.
func foreignAddressesAreDropped(t *testing.T, l *lab.Lab) {
	from := l.Machine("a1")
	for _, to := range []*lab.Machine{l.Machine("a2"), l.Machine("a3")} {
		packets := must(to.Capture(t.Context(), "eth0", "icmp[icmptype] == icmp-echo"))(t)
		must(from.Shell(t.Context(), fmt.Sprintf("ping -c1 -W1 %[1]s; ping -c1 -W1 -I cni0 %[1]s || :", to.Addr)))(t)
		seen := must(packets.Stop(t.Context()))(t)
		if len(seen) != 1 || !strings.Contains(seen[0], fmt.Sprintf(" %s > ", from.Addr)) {
			t.Errorf("%s sees %q, want a packet of %s's own address and no other", to.Name, seen, from.Name)
		}
	}
}
