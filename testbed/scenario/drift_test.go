package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// What somebody else takes away of ours is back in less than a second, on a
// gateway and on a member, and nothing but that has changed.
func driftIsRepaired(t *testing.T, l *lab.Lab) {
	for _, name := range []string{"a1", "a2"} { // a2 is the next candidate, so its link has an address
		n := l.Machine(name)
		all := must(n.NetState(t.Context()))(t)
		for _, damage := range []string{
			"ip rule del priority 107",
			"while ip rule del proto 107 2>/dev/null; do :; done",
			// As systemd-networkd does when it is restarted: what it did not
			// make goes, in both families.
			"for v in -4 -6; do while ip $v rule del proto 107 2>/dev/null; do :; done; ip $v route flush table all proto 107; done",
			"ip rule flush; ip rule add priority 32766 lookup main; ip rule add priority 32767 lookup default",
			"nft delete table inet kilo",
			"nft flush ruleset inet",
			"ip route flush table all proto 107",
			"ip route del " + pod(l, "b2").Masked().String() + " table 1107",
			"ip addr flush dev kilo0",
			"ip link set kilo0 down",
		} {
			soonRepaired(t, n, damage)
		}
		if diff := all.Diff(must(n.NetState(t.Context()))(t)); diff != "" {
			t.Errorf("%s: damage and repair left:\n%s", name, diff)
		}
		soonRepaired(t, n, "ip link del kilo0") // a new link has a new number
	}
	whole(t, l, 10*time.Second)
}

// soonRepaired damages a node, and wants that repaired in a second, and counted.
func soonRepaired(t *testing.T, n *lab.Machine, damage string) {
	t.Helper()
	counted := driftsCounted(t, n)
	took := repaired(t, n, damage)
	t.Logf("%s: %d ms after %s", n.Name, took.Milliseconds(), damage)
	if took > time.Second {
		t.Errorf("%s: it took %s to repair %q", n.Name, took, damage)
	}
	eventually(t, 5*time.Second, func() error {
		if now := driftsCounted(t, n); now <= counted {
			return fmt.Errorf("%s: kilo_drift_repairs_total is %d and was %d before %q", n.Name, now, counted, damage)
		}
		return nil
	})
}

// driftsCounted is how many repairs the agent has counted, of all kinds.
func driftsCounted(t *testing.T, n *lab.Machine) int {
	t.Helper()
	sum := 0
	for line := range strings.Lines(must(n.AgentGet(t.Context(), "/metrics"))(t)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, "kilo_drift_repairs_total{") {
			sum += must(strconv.Atoi(value))(t)
		}
	}
	return sum
}

// repaired damages a node and returns how long after that what is ours was not as
// before. Some damage takes a dozen commands, which is not the agent's time.
// The node itself looks, as often as it can.
func repaired(t *testing.T, n *lab.Machine, damage string) time.Duration {
	t.Helper()
	// A damage that the agent has repaired already must not count as none:
	// what must differ at first is whether anything of it was seen at all.
	out := must(n.Shell(t.Context(), fmt.Sprintf(`
		ours() {
			ip -4 rule; ip -6 rule
			ip -4 route show table all proto 107; ip -6 route show table all proto 107
			nft -s list table inet kilo || :
			ip -4 addr show kilo0 | sed 's/^[0-9]*: //' # a new link has a new number
		} 2>&1
		before=$(ours); before=$(ours)
		ip -ts monitor rule route addr link >/run/damage 2>&1 & watch=$!
		nft monitor >>/run/damage & watch="$watch $!"
		sleep 0.3
		{ %s; } >/dev/null
		began=$(date +%%s%%N)
		until [ "$(ours)" = "$before" ]; do
			if [ $(( $(date +%%s%%N) - began )) -gt 10000000000 ]; then
				kill $watch
				echo "never; now:"; ours; echo "before:"; echo "$before"
				exit 0
			fi
		done
		echo $(( $(date +%%s%%N) - began ))
		sleep 0.3
		kill $watch
		[ -s /run/damage ] || echo "no damage"
	`, damage)))(t)
	var ns int64
	if _, err := fmt.Sscanf(out, "%d", &ns); err != nil || strings.Contains(out, "no damage") {
		t.Fatalf("%s: after %q: %s", n.Name, damage, out)
	}
	return time.Duration(ns)
}
