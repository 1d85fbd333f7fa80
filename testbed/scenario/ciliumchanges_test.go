package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// What changes in a mesh on Cilium, in tunnel mode with Cilium for kube-proxy and
// in native mode with it, and in both with a cluster id whose bits a mark of ours
// could be among.
func TestCiliumChanges(t *testing.T) {
	onRequest(t)
	for _, mode := range ciliumModes()[:2] { // tunnel, native
		t.Run(mode.name, func(t *testing.T) {
			spec := lab.Default()
			spec.Sidecar = true
			mode.set(&spec)
			spec.Cilium.KubeProxyReplacement = spec.Cilium.Mode != lab.CiliumNative
			spec.Cilium.Flags = []string{"--cluster-name=lab", "--cluster-id=255", "--enable-endpoint-routes=true"}
			spec.Locations[0].Nodes[2].Pods = 2 // a3
			l := mesh(t, spec)
			reachAll(t, l, 56, 56)
			for _, s := range []struct {
				name string
				run  func(*testing.T, *lab.Lab)
			}{
				{"services", ciliumServicesAcross},
				{"everything away", restartedAlone},
				{"another gateway", gatewayMoves},
				{"FORWARD drops", forwardDropsOnCilium},
			} {
				t.Run(s.name, func(t *testing.T) { s.run(t, l) })
			}
		})
	}
}

// Agents of a gateway and a member are restarted while neither the API server nor
// Cilium's agent there answers: nothing is lost, and they do what they did.
func restartedAlone(t *testing.T, l *lab.Lab) {
	cp := l.Machine("cp")
	nodes := []*lab.Machine{l.Machine("a1"), l.Machine("a3")}
	before := map[string]lab.NetState{}
	for _, n := range nodes {
		ok(t, n.SignalDaemon("cilium-agent", unix.SIGSTOP))
		before[n.Name] = must(n.NetState(t.Context()))(t)
	}
	ok(t, cp.SignalDaemon("kube-apiserver", unix.SIGSTOP))
	streams := startStreams(t, l, "a3 b2", "b2 a1")
	for _, n := range nodes {
		ok(t, n.RestartAgent(t.Context()))
		eventually(t, soon, func() error {
			status, err := n.AgentGet(t.Context(), "/status")
			if err == nil && !strings.Contains(status, `"snapshot": "disk"`) {
				err = fmt.Errorf("%s did not start from its snapshot: %s", n.Name, status)
			}
			return err
		})
	}
	time.Sleep(20 * time.Second) // half of it they wait for Cilium's agent before they decide
	for _, s := range streams {
		if stats := must(s.run.Stop(t.Context()))(t); stats.Lost() > 0 {
			t.Errorf("%s, with nobody to ask: %s", s.name, stats)
		}
	}
	for _, n := range nodes {
		if diff := before[n.Name].Diff(must(n.NetState(t.Context()))(t)); diff != "" {
			t.Errorf("%s, restarted with nobody to ask:\n%s", n.Name, diff)
		}
	}
	ok(t, cp.SignalDaemon("kube-apiserver", unix.SIGCONT))
	for _, n := range nodes {
		ok(t, n.SignalDaemon("cilium-agent", unix.SIGCONT))
	}
	whole(t, l, soon)
}

// The annotation moves location a's gateway to a2 and to a1 back.
func gatewayMoves(t *testing.T, l *lab.Lab) {
	yes := "true"
	for _, to := range []string{"a2", "a1"} {
		streams := startStreams(t, l, "a3 b2", "c2 a3")
		// The other's wish goes first: a new one counts against none.
		for _, n := range []string{"a1", "a2"} {
			if n != to {
				ok(t, l.Annotate(t.Context(), n, map[string]*string{"kilo.squat.ai/leader": nil}))
			}
		}
		ok(t, l.Annotate(t.Context(), to, map[string]*string{"kilo.squat.ai/leader": &yes}))
		eventually(t, soon, gatewayIs(t.Context(), l, "a", to))
		whole(t, l, soon)
		for _, s := range streams {
			stats := must(s.run.Stop(t.Context()))(t)
			t.Logf("the gateway moves to %s: %s: %s", to, s.name, stats)
			if stats.LongestGap > 3*time.Second {
				t.Errorf("the gateway moves to %s: %s: %s", to, s.name, stats)
			}
		}
	}
	reachAll(t, l, 56, 56)
	ciliumAdoptsNothing(t, l)
	ok(t, l.Annotate(t.Context(), "a1", map[string]*string{"kilo.squat.ai/leader": nil}))
}

// A FORWARD chain drops on a gateway and a member. Asked to, agents put an accept
// into it that goes by a mark; and Cilium still finds in the mark who the sender
// is, when it delivers to a pod on the sender's own node.
func forwardDropsOnCilium(t *testing.T, l *lab.Lab) {
	dropping := []*lab.Machine{l.Machine("a1"), l.Machine("a3")}
	everybody := append(l.PodPlaces(), l.NodePlaces()...)
	for _, n := range dropping {
		must(n.Shell(t.Context(), "iptables-nft -P FORWARD DROP"))(t)
	}
	broken := must(lab.Reach(t.Context(), everybody, everybody))(t)
	if broken.OK() {
		t.Error("everybody reaches everybody: the chain drops nothing")
	}
	t.Logf("by default %s", broken.Summary())
	for _, n := range dropping {
		eventually(t, soon, warns(t, n, "ForwardDrop", "--iptables-forward-rules"))
		ok(t, n.RestartAgent(t.Context(), "--iptables-forward-rules"))
	}
	whole(t, l, soon)
	whole(t, l, soon)
	policyOnOneNode(t, l)
	for _, n := range dropping {
		must(n.Shell(t.Context(), "iptables-nft -P FORWARD ACCEPT"))(t)
		ok(t, n.RestartAgent(t.Context()))
	}
	whole(t, l, soon)
}

// policyOnOneNode lets the second pod of a3 be reached by its first, by label, and
// by nobody else.
func policyOnOneNode(t *testing.T, l *lab.Lab) {
	t.Helper()
	to := l.Pod("pod-a3-2")
	apply(t, l, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: on-one-node, namespace: default}
spec:
  podSelector: {matchLabels: {app: pod-a3-2}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: pod-a3-1}}}]
`)
	eventually(t, soon, func() error {
		var names []string
		for _, pair := range must(lab.Reach(t.Context(), l.PodPlaces(), []*lab.Place{&to.Place}))(t).Pairs {
			if pair.OK {
				names = append(names, pair.From)
			}
		}
		if want := []string{"pod-a3-1"}; !slices.Equal(names, want) {
			return fmt.Errorf("%s is reached by %q, want %q", to.Name, names, want)
		}
		return nil
	})
	must(l.Kubectl(t.Context(), "delete", "networkpolicy", "on-one-node"))(t)
	eventually(t, soon, func() error { return l.Pod("b2").Ping(t.Context(), to.Addr) })
}

// Every pair that can meet does so directly, and in one location too, on Cilium as
// on Flannel: across in cross, everywhere in full.
func TestCiliumGranularities(t *testing.T) {
	onRequest(t)
	for _, mode := range ciliumModes()[:2] { // tunnel, native
		t.Run(mode.name, func(t *testing.T) {
			spec := everyNodePublic()
			spec.RPFilter = lab.RPFilterLoose // full wants it
			mode.set(&spec)
			l := mesh(t, spec)
			for _, granularity := range []string{"cross", "full"} {
				for _, n := range l.Agents() {
					ok(t, n.RestartAgent(t.Context(), "--mesh-granularity="+granularity))
				}
				whole(t, l, soon)
				eventually(t, soon, linked(t, l, "a3", "b2"))
				if granularity == "full" {
					eventually(t, soon, linked(t, l, "a2", "a3"))
				}
				reachAll(t, l, 30, 30)
				ciliumAdoptsNothing(t, l)
			}
		})
	}
}

// linked is a check for eventually: each of two nodes sends what is for the other
// into the tunnel itself.
func linked(t *testing.T, l *lab.Lab, a, b string) func() error {
	return func() error {
		for _, pair := range [][2]string{{a, b}, {b, a}} {
			way := must(l.Machine(pair[0]).Exec(t.Context(), "/usr/sbin/ip", "route", "get", l.Machine(pair[1]).Addr.String()))(t)
			if !strings.Contains(way, " dev kilo0 ") {
				return fmt.Errorf("%s reaches %s by %s", pair[0], pair[1], way)
			}
		}
		return nil
	}
}
