package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// installed brings up a lab whose agents are what a manifest makes of them:
// arguments, environment, mounts, capabilities, a token of their own, RBAC and the
// admission policy. prepare is what the distribution has beside it.
func installed(t *testing.T, manifest string, spec lab.Spec, prepare func(*lab.Lab)) *lab.Lab {
	t.Helper()
	spec.Manifest = manifest
	full := must(spec.Complete())(t)
	for i := range full.Locations {
		for j := range full.Locations[i].Nodes {
			// The lab's internet is a documentation range, which no agent takes
			// for public by itself; so nodes are told, as behind a cloud's NAT.
			if n := &full.Locations[i].Nodes[j]; n.Public && !n.Outsider {
				n.Annotations = map[string]string{"kilo.squat.ai/force-endpoint": n.PublicIP.String() + ":51820"}
			}
		}
	}
	l := upWith(t, lab.Options{Name: labName(t), HoldAgents: true}, full)
	prepare(l)
	ok(t, l.StartAgents(t.Context()))
	whole(t, l, soon)
	return l
}

// nothingDenied fails the test where the API server has denied an agent something.
func nothingDenied(t *testing.T, l *lab.Lab) {
	t.Helper()
	asked := map[string]bool{}
	for _, r := range must(l.Requests(t.Context(), time.Time{}))(t) {
		if r.User != lab.AgentUser {
			continue
		}
		asked[r.Verb+" "+r.Resource] = true
		if r.Code == 401 || r.Code == 403 || r.Code == 422 {
			t.Errorf("denied: %s", r)
		}
	}
	for _, needed := range []string{"patch nodes", "patch nodes/status", "watch peers"} {
		if !asked[needed] {
			t.Errorf("no agent was seen to %s: %v", needed, asked)
		}
	}
}

// cluster with kubeadm: the ConfigMap kube-proxy says where the API server is.
func withKubeProxyConfig(t *testing.T) func(*lab.Lab) {
	return func(l *lab.Lab) {
		client := must(l.Client("admin"))(t)
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}, Data: map[string]string{"kubeconfig.conf": l.KubeProxyConfig()}}
		must(client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(t.Context(), config, metav1.CreateOptions{}))(t)
	}
}

// A cluster made with kubeadm, on Flannel: one kubectl apply and the mesh is there,
// "wg show" answers in the agent's pod, agents come again, and
// kilo-uninstall.yaml leaves the Node as it was.
func TestInstalledOnKubeadm(t *testing.T) {
	l := installed(t, "kilo-kubeadm-flannel.yaml", lab.Default(), withKubeProxyConfig(t))
	reachAll(t, l, 42, 56)

	a1 := l.Machine("a1")
	shown := must(a1.ExecAgent(t.Context(), "wg", "show"))(t)
	if !strings.HasPrefix(shown, "interface: kilo0\n") || strings.Count(shown, "\npeer: ") != 3 || !strings.Contains(shown, "latest handshake:") {
		t.Errorf("wg show in the pod of a gateway with three others:\n%s", shown)
	}
	for _, n := range l.Agents() {
		status := must(n.Exec(t.Context(), "/bin/cat", fmt.Sprintf("/proc/%d/status", n.Daemon("kg"))))(t)
		// CAP_NET_ADMIN is 12, CAP_NET_RAW 13.
		if !strings.Contains(status, "CapBnd:\t0000000000003000") || !strings.Contains(status, "NoNewPrivs:\t1") {
			t.Errorf("%s: the agent is not confined:\n%s", n.Name, status)
		}
		ok(t, n.RestartAgent(t.Context()))
		ok(t, n.WaitForAgent(t.Context(), 30*time.Second))
	}
	whole(t, l, soon)

	// Somebody moves a node by an annotation; the agent says so under the policy.
	east := "east"
	ok(t, l.Annotate(t.Context(), "c1", map[string]*string{"kilo.squat.ai/location": &east}))
	eventually(t, soon, func() error {
		if n := node(t, l, "c1"); n.Labels["kilo.squat.ai/location"] != east {
			return fmt.Errorf("labels of c1: %v", n.Labels)
		}
		return nil
	})
	ok(t, l.Annotate(t.Context(), "c1", map[string]*string{"kilo.squat.ai/location": nil}))
	whole(t, l, soon)
	nothingDenied(t, l)

	a3 := l.Machine("a3")
	if _, err := a3.ExecAgent(t.Context(), "kg", "uninstall"); err == nil {
		t.Error("kg uninstall ran beside the agent")
	}
	ok(t, a3.UninstallAgent(t.Context()))
	if links := must(a3.Exec(t.Context(), "/usr/sbin/ip", "-brief", "link"))(t); strings.Contains(links, "kilo") {
		t.Errorf("uninstalled, and a3 has\n%s", links)
	}
	for name := range node(t, l, "a3").Annotations {
		if strings.HasPrefix(name, "kilo.squat.ai/") {
			t.Errorf("uninstalled, and a3 carries %s", name)
		}
	}
	nothingDenied(t, l)
}

// Nodes without the kernel's WireGuard under k3s: the packets are kilo-wireguard's,
// and a rolling update of all agents loses none.
func TestInstalledOnK3sUserspace(t *testing.T) {
	l := installed(t, "kilo-k3s-userspace-heterogeneous.yaml", lab.Default(), func(l *lab.Lab) {
		for _, n := range l.Agents() {
			ok(t, n.StartForward(t.Context(), 6444))
		}
	})
	stop := pings(t, l, [][2]string{{"a3", "b2"}, {"b2", "c1"}, {"a1", "b1"}})
	time.Sleep(time.Second) // all agents are new within one, on a quick machine
	for _, n := range l.Agents() {
		if links := held(t, n, n.Daemon("kg")); links != "" {
			t.Errorf("%s: the agent itself holds %s", n.Name, links)
		}
		ok(t, n.RestartAgent(t.Context()))
		ok(t, n.WaitForAgent(t.Context(), 30*time.Second))
	}
	time.Sleep(time.Second)
	for what, s := range stop() {
		if s.Lost() > 0 || s.Sent < 100 {
			t.Errorf("%s: %s; want none lost of at least 100", what, s)
		}
	}
	reachAll(t, l, 42, 56)
	nothingDenied(t, l)
	namesMissingVerb(t, l)
}

// namesMissingVerb takes a verb away: the agent names it, and goes on as far as it
// can.
func namesMissingVerb(t *testing.T, l *lab.Lab) {
	t.Helper()
	client := must(l.Client("admin"))(t)
	role := must(client.RbacV1().ClusterRoles().Get(t.Context(), "kilo", metav1.GetOptions{}))(t)
	for i := range role.Rules {
		if slices.Contains(role.Rules[i].Resources, "nodes/status") {
			role.Rules[i].Verbs = []string{"get"}
		}
	}
	must(client.RbacV1().ClusterRoles().Update(context.WithoutCancel(t.Context()), role, metav1.UpdateOptions{}))(t)
	n := l.Machine("b2")
	ok(t, n.RestartAgent(t.Context()))
	eventually(t, soon, func() error {
		if text := must(n.Log("kg"))(t); !strings.Contains(text, "patch nodes/status") {
			return fmt.Errorf("the log does not name what is missing")
		}
		return nil
	})
	reachAll(t, l, 42, 56)
}
