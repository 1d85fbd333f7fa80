package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// ciliumAlone is what Cilium does by itself, in each of its modes, before any agent
// of ours comes: exactly the pairs across locations fail; policies and Services
// work inside a location; a restart of its agent costs no packet and changes
// nothing; nodes come and go.
func ciliumAlone(t *testing.T, l *lab.Lab, says []string) {
	onlyLocationsAreWhole(t, l, 42)
	for _, n := range l.Nodes() {
		health := must(n.CiliumGet(t.Context(), "healthz"))(t)
		for _, want := range says {
			if !strings.Contains(health, want) {
				t.Errorf("%s does not say %s of itself", n.Name, want)
			}
		}
	}
	ciliumEnforcesPolicies(t, l)
	ciliumRestarts(t, l.Machine("a2"), l.Pod("a1"), l.Pod("a2"))
	service := must(l.Expose(t.Context(), "inside", l.Pod("a2")))(t)
	eventually(t, soon, func() error {
		for _, from := range []*lab.Place{&l.Pod("a3").Place, &l.Machine("a3").Place} {
			if _, err := from.SeenAt(t.Context(), service); err != nil {
				return err
			}
		}
		return nil
	})
	ciliumNodeJoinsAndLeaves(t, l)
}

// ciliumMode is one way of setting Cilium up, and what its agents then say of
// themselves.
type ciliumMode struct {
	name string
	set  func(*lab.Spec)
	says []string
}

func ciliumModes() []ciliumMode {
	return []ciliumMode{
		{"tunnel", func(s *lab.Spec) { s.CNI = lab.CNICilium },
			[]string{`"inter-host-routing-mode":"Tunnel"`, `"intra-host-routing-mode":"Legacy"`}},
		{"native", func(s *lab.Spec) { s.CNI, s.Cilium.Mode = lab.CNICilium, lab.CiliumNative },
			[]string{`"inter-host-routing-mode":"Native"`, `"intra-host-routing-mode":"Legacy"`}},
		{"native-bpf", func(s *lab.Spec) {
			s.CNI, s.Cilium.Mode, s.Cilium.HostRouting = lab.CNICilium, lab.CiliumNative, lab.HostRoutingBPF
		}, []string{`"inter-host-routing-mode":"Native"`, `"intra-host-routing-mode":"BPF"`}},
		{"chained", func(s *lab.Spec) { s.CNI = lab.CNIChained },
			[]string{`"cni-chaining":{"mode":"generic-veth"}`}},
		{"tunnel-bpf", func(s *lab.Spec) { s.CNI, s.Cilium.HostRouting = lab.CNICilium, lab.HostRoutingBPF },
			[]string{`"inter-host-routing-mode":"Tunnel"`, `"intra-host-routing-mode":"BPF"`}},
	}
}

// ciliumNodeJoinsAndLeaves takes a node more into a location, and out again.
func ciliumNodeJoinsAndLeaves(t *testing.T, l *lab.Lab) {
	t.Helper()
	must(l.Join(t.Context(), "b", lab.Node{Name: "b3", Pods: 1}))(t)
	eventually(t, soon, func() error { return l.Pod("b3").Ping(t.Context(), l.Pod("b1").Addr) })
	ok(t, l.Leave(t.Context(), "b3"))
	if left := must(l.Kubectl(t.Context(), "get", "nodes,pods,ciliumnodes,ciliumendpoints", "--output=name"))(t); strings.Contains(left, "b3") {
		t.Errorf("b3 is still there:\n%s", left)
	}
}

// ciliumEnforcesPolicies lets one pod of a location be reached by one other
// only.
func ciliumEnforcesPolicies(t *testing.T, l *lab.Lab) {
	t.Helper()
	a1, a2, a3 := l.Pod("a1"), l.Pod("a2"), l.Pod("a3")
	apply(t, l, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-a3, namespace: default}
spec:
  podSelector: {matchLabels: {app: pod-a2}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: pod-a3}}}]
`)
	eventually(t, soon, func() error {
		if a1.Ping(t.Context(), a2.Addr) == nil {
			return fmt.Errorf("%s reaches %s against the policy", a1.Name, a2.Name)
		}
		return nil
	})
	ok(t, a3.Ping(t.Context(), a2.Addr))
	must(l.Kubectl(t.Context(), "delete", "networkpolicy", "only-a3"))(t)
	eventually(t, soon, func() error { return a1.Ping(t.Context(), a2.Addr) })
}

// ciliumRestarts restarts a node's Cilium agent while a pod elsewhere pings one
// of its pods.
func ciliumRestarts(t *testing.T, n *lab.Machine, from, to *lab.Pod) {
	t.Helper()
	before, pid := ciliumState(t, n), n.Daemon("cilium-agent")
	pings := must(from.StartPing(t.Context(), to.Addr, 20*time.Millisecond))(t)
	began := time.Now()
	ok(t, n.RestartCilium(t.Context()))
	took := time.Since(began)
	stats := must(pings.Stop(t.Context()))(t)
	t.Logf("%s: Cilium's agent is back after %s; %s → %s: %s", n.Name, took.Round(100*time.Millisecond), from.Name, to.Name, stats)
	if now := n.Daemon("cilium-agent"); now == pid || now == 0 {
		t.Errorf("%s: Cilium's agent is process %d, was %d", n.Name, now, pid)
	}
	if stats.Lost() > 0 {
		t.Errorf("%s → %s, while Cilium's agent restarts: %s", from.Name, to.Name, stats)
	}
	// It takes its old chains away a moment later.
	eventually(t, soon, func() error {
		if diff := before.Diff(ciliumState(t, n)); diff != "" {
			return fmt.Errorf("%s, before the restart of Cilium's agent and after:\n%s", n.Name, diff)
		}
		return nil
	})
}

// ciliumState is the machine's NetState without the map of a feature that is off:
// an agent that starts sweeps it away and loads programs that pin it, at the same
// time, and either may be first.
func ciliumState(t *testing.T, n *lab.Machine) lab.NetState {
	t.Helper()
	var s lab.NetState
	eventually(t, soon, func() (err error) {
		s, err = n.NetState(t.Context())
		// What it had before its start goes a moment after the new is there.
		if err == nil && strings.Contains(s.String(), "OLD_CILIUM") {
			err = fmt.Errorf("%s: Cilium's agent has not swept its old chains away", n.Name)
		}
		return err
	})
	for i := range s.Sections {
		s.Sections[i].Lines = slices.DeleteFunc(s.Sections[i].Lines, func(line string) bool { return strings.HasSuffix(line, "/cilium_l2_responder_v6") })
	}
	return s
}
