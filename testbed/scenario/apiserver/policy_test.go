package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

// tokenOf is the token of the agent's pod on a node, as a kubelet asks for it.
func tokenOf(s *server, node string) string {
	s.t.Helper()
	name := "kilo-" + node
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"},
		Spec:       corev1.PodSpec{ServiceAccountName: "kilo", NodeName: node, Containers: []corev1.Container{{Name: "kilo", Image: "none"}}},
	}
	pod, err := s.admin().CoreV1().Pods("kube-system").Create(s.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	request, err := s.admin().CoreV1().ServiceAccounts("kube-system").CreateToken(s.t.Context(), "kilo", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return request.Status.Token
}

// patchAs patches a Node, or its status, with a token, and returns the API
// server's answer.
func patchAs(s *server, token, node, subresource string, patch any) error {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(s.config(token))
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(patch)
	if err != nil {
		s.t.Fatal(err)
	}
	var sub []string
	kind := types.MergePatchType
	if subresource != "" {
		sub, kind = []string{subresource}, types.StrategicMergePatchType
	}
	_, err = c.CoreV1().Nodes().Patch(s.t.Context(), node, kind, body, metav1.PatchOptions{}, sub...)
	return err
}

type object = map[string]any

func annotations(kv ...any) object { return object{"metadata": object{"annotations": pairs(kv)}} }
func labels(kv ...any) object      { return object{"metadata": object{"labels": pairs(kv)}} }

func pairs(kv []any) object {
	out := object{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i].(string)] = kv[i+1]
	}
	return out
}

// With the manifest in place, a token that was taken from the agent of one node
// is worth that node and nothing else; the agent itself is held up by nothing.
func TestPolicyHoldsAgentsToTheirOwnNode(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	s.apply("crds.yaml")
	s.apply("kilo-flannel.yaml")
	for i, name := range []string{"e1", "w1", "l1"} {
		s.node(ctx, name, fmt.Sprintf("10.0.%d.1", i), func(n *corev1.Node) {
			n.Labels = map[string]string{"topology.kubernetes.io/region": "region-" + name}
			n.Annotations = map[string]string{"example.com/mine": "kept"}
			n.Spec.PodCIDR, n.Spec.PodCIDRs = fmt.Sprintf("10.244.%d.0/24", i), []string{fmt.Sprintf("10.244.%d.0/24", i)}
			n.Finalizers = []string{"example.com/hold"}
		})
	}
	e1 := tokenOf(s, "e1")

	// The policy counts a moment after it was made.
	s.wait(time.Minute, "the policy to count", func() (bool, string) {
		err := patchAs(s, e1, "w1", "", annotations(api.Tunnel, "kernel"))
		return err != nil && strings.Contains(err.Error(), "kilo-agent"), fmt.Sprint(err)
	})

	// An agent publishes, changes, tells its condition and clears.
	c := cluster.New(cluster.Config{
		REST: s.config(e1), Node: "e1", TopologyLabel: "topology.kubernetes.io/region", Version: "test",
		WireGuardSubnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")},
	})
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Run(running) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	sees(s, c, true, "its Node", func(s model.Snapshot, _ []model.Warning) bool { return s.Node("e1") != nil })
	if missing, err := c.MissingPermissions(ctx); err != nil || len(missing) != 0 {
		t.Errorf("missing %v, error %v", missing, err)
	}
	p := published()
	p.Location, p.InternalIPs = "region-e1", []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}
	p.Asked, p.TunnelMTU, p.Silent, p.NodesOnly = "leader", 1420, []string{"w1"}, true
	p.FromFlags.Keepalive = 25 * time.Second
	if err := c.Publish(ctx, p); err != nil {
		t.Fatal(err)
	}
	for _, ready := range []bool{false, true} {
		if err := c.Condition(ctx, ready, "Because", "of this"); err != nil {
			t.Fatal(err)
		}
	}
	s.kubectl("", "annotate", "node", "e1", api.Location+"=east")
	sees(s, c, true, "the new location", func(model.Snapshot, []model.Warning) bool {
		in, _, _ := c.Inputs()
		return in.LocationAnnotation == "east"
	})
	p.Location, p.Epoch = "east", 2
	if err := c.Publish(ctx, p); err != nil {
		t.Fatal(err)
	}
	if n := s.get("e1"); n.Labels[api.Location] != "east" || n.Annotations[api.MeshLocation] != "east" || condition(n, api.MeshCondition) == nil {
		t.Errorf("published: labels %v, annotations %v", n.Labels, n.Annotations)
	}

	// l1's label location is its owner's.
	s.kubectl("", "label", "node", "l1", api.Location+"=lab")
	l1 := tokenOf(s, "l1")
	allowed(s, "what is right on l1", patchAs(s, l1, "l1", "", annotations(api.MeshLocation, "lab", api.Key, model.Key{3}.String())))

	const shared = agentToken // the service account without a node
	for _, c := range []struct {
		name, token, node, sub string
		patch                  object
		says                   string
	}{
		{"another node's key", e1, "w1", "", annotations(api.Key, model.Key{9}.String()), "bound to node e1, not to w1"},
		{"another node's condition", e1, "w1", "status", object{"status": object{"conditions": []object{{"type": api.MeshCondition, "status": "False"}}}}, "bound to node e1, not to w1"},
		{"a token that is bound to no node", shared, "e1", "", annotations(api.Key, model.Key{9}.String()), "bound to no node"},
		{"gateway of a foreign location", e1, "e1", "", annotations(api.MeshLocation, "region-w1", api.Epoch, "7"), `stands in location "east", not in "region-w1"`},
		{"... by an input", e1, "e1", "", annotations(api.Location, "region-w1", api.MeshLocation, "region-w1"), "no annotations of an agent: " + api.Location},
		{"... by the region's label", e1, "e1", "", labels("topology.kubernetes.io/region", "region-w1"), "no labels of an agent: topology.kubernetes.io/region"},
		{"... by way of the status", e1, "e1", "status", annotations(api.Leader, ""), "no annotations of an agent: " + api.Leader},
		{"... by taking the owner's label over", l1, "l1", "", annotations(api.MirroredLocation, "lab"), "mirrored-location"},
		{"... by another label", l1, "l1", "", labels(api.Location, "east"), "no labels of an agent: " + api.Location},
		{"... by a label that is not its location", e1, "e1", "", labels(api.Location, "region-w1"), "equals the annotation"},
		{"leader", e1, "e1", "", annotations(api.Leader, ""), "no annotations of an agent: " + api.Leader},
		{"leader, as if by a flag", e1, "e1", "", annotations(api.FlagLeader, "true"), "no flag says"},
		{"force-endpoint", e1, "e1", "", annotations(api.ForceEndpoint, "203.0.113.9:51820"), "no annotations of an agent"},
		{"force-internal-ip", e1, "e1", "", annotations(api.ForceInternalIP, "10.0.1.1/24"), "no annotations of an agent"},
		{"allowed-location-ips", e1, "e1", "", annotations(api.AllowedLocationIPs, "0.0.0.0/1"), "no annotations of an agent"},
		{"allowed-location-ips, as if by a flag", e1, "e1", "", annotations(api.FlagAllowedLocationIPs, "0.0.0.0/1"), "no flag says"},
		{"transit", e1, "e1", "", annotations("kilo.squat.ai/transit", "true"), "no annotations of an agent"},
		{"somebody else's annotation", e1, "e1", "", annotations("example.com/mine", nil), "no annotations of an agent: example.com/mine"},
		{"somebody else's label", e1, "e1", "", labels("example.com/zone", "x"), "no labels of an agent"},
		{"another node's internal address", e1, "e1", "", annotations(api.InternalIP, "10.0.1.1/24"), "none of this Node (10.0.0.1, e1)"},
		{"... beside its own", e1, "e1", "", annotations(api.InternalIP, "10.0.0.1/24,10.0.1.1/24"), "none of this Node"},
		{"no address at all", e1, "e1", "", annotations(api.InternalIP, "10.0.1.x"), "none of this Node"},
		{"an epoch that nobody can follow", e1, "e1", "", annotations(api.Epoch, "18446744073709551615"), "epoch"},
		{"an epoch far away", e1, "e1", "", annotations(api.Epoch, "1000003"), "epoch"},
		{"a taint", e1, "e1", "", object{"spec": object{"unschedulable": true}}, "spec, finalizers and owners"},
		{"a finalizer", e1, "e1", "", object{"metadata": object{"finalizers": []string{}}}, "spec, finalizers and owners"},
		{"addresses", e1, "e1", "status", object{"status": object{"addresses": []object{{"type": "ExternalIP", "address": "10.0.1.1"}}}}, "only the condition KiloMesh"},
		{"another condition", e1, "e1", "status", object{"status": object{"conditions": []object{{"type": "Ready", "status": "False"}}}}, "only the condition KiloMesh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.get(c.node)
			err := patchAs(s, c.token, c.node, c.sub, c.patch)
			if err == nil || !strings.Contains(err.Error(), "kilo-agent") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v\nwant the policy's word, with %q", err, c.says)
			}
			if after := s.get(c.node); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("it was written: %v", after.Annotations)
			}
		})
	}

	// What people allow is allowed.
	s.kubectl("", "annotate", "node", "e1", api.ForceInternalIP+"=10.0.7.7/24, fd00::7/64")
	allowed(s, "forced addresses", patchAs(s, e1, "e1", "", annotations(api.InternalIP, "10.0.7.7/24,fd00::7/64")))
	allowed(s, "the epoch above all others", patchAs(s, e1, "e1", "", annotations(api.Epoch, "700")))
	// Others are not concerned by it.
	s.kubectl("", "annotate", "node", "w1", api.Leader+"=")

	if err := c.Clear(ctx); err != nil {
		t.Errorf("clear: %v", err)
	}
	n := s.get("e1")
	for _, name := range api.Outputs() {
		if value, left := n.Annotations[name]; left {
			t.Errorf("left: %s=%s", name, value)
		}
	}
}

func allowed(s *server, what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("%s: %v", what, err)
	}
}

// Every manifest is taken by a real API server, which refuses fields that it does
// not know and expressions that do not compile.
func TestEveryManifestIsTaken(t *testing.T) {
	s := start(t)
	// What the Prometheus operator brings. Its own definitions are not at hand, so
	// these take anything of that kind.
	for kind, plural := range map[string]string{"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"} {
		s.kubectl(fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: %[1]s, plural: %[2]s}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, kind, plural), "apply", "--filename=-")
		s.kubectl("", "wait", "--for=condition=Established", "crd/"+plural+".monitoring.coreos.com")
	}
	files, err := filepath.Glob(filepath.Join(s.root, "manifests", "*.yaml"))
	if err != nil || len(files) < 15 {
		t.Fatalf("%d manifests, error %v", len(files), err)
	}
	for _, file := range files {
		s.kubectl("", "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename="+file)
	}
	// As the seeds of the documentation have it: two lines, and then again by the
	// next release's.
	for range 2 {
		for _, file := range []string{"crds.yaml", "kilo-kubeadm.yaml"} {
			s.kubectl("", "apply", "--filename="+filepath.Join(s.root, "manifests", file))
		}
	}
	if out := s.kubectl("", "-n", "kube-system", "get", "ds", "-l", "app.kubernetes.io/name=kilo"); !strings.Contains(out, "kilo") {
		t.Errorf("no DaemonSet by the label that people look for:\n%s", out)
	}
}
