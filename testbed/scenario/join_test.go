package scenario

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A node joins a location and leaves it, and a whole location does. All find
// out in seconds, nobody's WireGuard address changes, and of those who left
// nothing stays behind.
func nodesJoinAndLeave(t *testing.T, l *lab.Lab) {
	addresses := wireGuardAddresses(t, l)
	for location, n := range map[string]lab.Node{
		"b": {Name: "b3", Pods: 1},
		"d": {Name: "d1", Public: true, Pods: 1},
	} {
		m := must(l.Join(t.Context(), location, n))(t)
		t.Logf("%s joined: whole after %s", n.Name, whole(t, l, soon).Round(10*time.Millisecond))
		mine := []string{m.Addr.String(), pod(l, n.Name).Masked().String()}
		for _, what := range mine {
			if knowing := whoKnows(t, l, what); len(knowing) < 7 {
				t.Errorf("%s has joined, and of %s only %q know", n.Name, what, knowing)
			}
		}
		now := wireGuardAddresses(t, l)
		delete(now, n.Name)
		if !maps.Equal(addresses, now) {
			t.Errorf("%s joined, and addresses moved from %v to %v", n.Name, addresses, now)
		}

		ok(t, l.Leave(t.Context(), n.Name))
		left := time.Now()
		eventually(t, soon, func() error {
			for _, what := range mine {
				if knowing := whoKnows(t, l, what); len(knowing) > 0 {
					return fmt.Errorf("%s has left, and of %s still %q know", n.Name, what, knowing)
				}
			}
			return nil
		})
		within(t, 5*time.Second, time.Since(left), n.Name+" has left, and is forgotten")
		whole(t, l, soon)
	}
}

// A node's Node is deleted and made again while all runs, so it gets another
// pod prefix: the others follow, Flannel and the node itself too, and the old
// prefix is forgotten. On a member and on a gateway.
func podPrefixChanges(t *testing.T, l *lab.Lab) {
	for _, name := range []string{"a3", "b1"} {
		m := l.Machine(name)
		before := pod(l, name).Masked().String()
		ok(t, m.Unregister(t.Context()))
		gone := time.Now()
		eventually(t, soon, func() error {
			if knowing := whoKnows(t, l, before); len(slices.DeleteFunc(knowing, func(n string) bool { return n == name })) > 0 {
				return fmt.Errorf("%s is deleted, and of %s still %q know", name, before, knowing)
			}
			return nil
		})
		within(t, 5*time.Second, time.Since(gone), name+" is deleted, and its prefix forgotten")
		ok(t, m.Register(t.Context()))
		ok(t, m.RestartFlannel(t.Context()))
		after := node(t, l, name).Spec.PodCIDR
		if after == before {
			t.Fatalf("%s has prefix %s as before: nothing was tried", name, after)
		}
		eventually(t, soon, func() error {
			if knowing := whoKnows(t, l, after); len(knowing) < 7 {
				return fmt.Errorf("of %s, now %s's, only %q know", after, name, knowing)
			}
			return nil
		})
		// Its pods need a new address, too.
		ok(t, m.PowerOff(t.Context()))
		ok(t, m.PowerOn(t.Context()))
		if !netip.MustParsePrefix(after).Contains(l.Pod(name).Addr) {
			t.Errorf("the pod of %s has %s, outside of %s", name, l.Pod(name).Addr, after)
		}
		t.Logf("%s: whole %s after its restart with %s", name, whole(t, l, soon).Round(10*time.Millisecond), after)
		if knowing := whoKnows(t, l, before); len(knowing) > 0 {
			t.Errorf("of %s still %q know", before, knowing)
		}
	}
	sourcesAreTrue(t, l)
}

// whoKnows lists the nodes that have an address or prefix in a route of ours,
// in WireGuard's allowed IPs or in our nftables table.
func whoKnows(t *testing.T, l *lab.Lab, what string) []string {
	t.Helper()
	var knowing []string
	for _, n := range l.Agents() {
		if !n.Alive() {
			continue
		}
		text := must(n.Shell(t.Context(), `
			ip route show table all proto 107
			wg show kilo0 allowed-ips
			nft list table inet kilo
		`))(t)
		words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n,", r) })
		if slices.Contains(words, what) || slices.Contains(words, what+"/32") {
			knowing = append(knowing, n.Name)
		}
	}
	return knowing
}

// wireGuardAddresses are those of all nodes that hold one.
func wireGuardAddresses(t *testing.T, l *lab.Lab) map[string]string {
	t.Helper()
	held := map[string]string{}
	for _, n := range l.Agents() {
		if s := must(n.AgentStatus(t.Context()))(t); len(s.WireGuardIPs) > 0 {
			held[n.Name] = s.WireGuardIPs[0]
		}
	}
	return held
}
