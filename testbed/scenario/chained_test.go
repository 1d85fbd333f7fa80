package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// Flannel routes and Cilium, chained behind it, enforces policies: agents find
// that out and join Flannel's network, and Cilium knows pods and nodes of other
// locations for what they are.
func TestChained(t *testing.T) {
	spec := lab.Default()
	spec.CNI = lab.CNIChained
	spec.Locations[1].Nodes[1].PodNamespace = "elsewhere" // b2's pod
	l := mesh(t, spec)
	reachAll(t, l, 42, 56)
	sourcesAreTrue(t, l)
	servicesAcross(t, l)
	ciliumPoliciesAcross(t, l)
	for _, name := range []string{"a1", "a3"} { // a gateway and a member
		ciliumRestarts(t, l.Machine(name), l.Pod("b2"), l.Pod(name))
	}
	ciliumAdoptsNothing(t, l)
	reachAll(t, l, 42, 56)
	packetSizes(t, l)
}

// ciliumPoliciesAcross lets a pod be reached by what a policy names in other
// locations, and by nothing else: a pod by its label, another by its namespace,
// and nodes. The pod of b2 must be in the namespace elsewhere. Nodes of the pod's
// own location are left out: Flannel gives their packets addresses (of cni0 and
// flannel.1) that a chained Cilium takes for nobody's.
func ciliumPoliciesAcross(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, p := range []struct {
		what, to, policy string
		allowed          []string
	}{
		{"a label and a namespace", "pod-a3", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: across, namespace: default}
spec:
  podSelector: {matchLabels: {app: pod-a3}}
  ingress:
  - from:
    - podSelector: {matchLabels: {app: pod-c2}}
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: elsewhere}}
`, []string{"pod-c2", "pod-b2"}},
		{"remote nodes", "pod-c1", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: across, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: pod-c1}}
  ingress:
  - fromEntities: [remote-node]
`, []string{"a1", "a2", "a3", "b1", "b2", "cp"}},
	} {
		to := l.Pod(p.to)
		from := append(l.PodPlaces(), slices.DeleteFunc(l.NodePlaces(), func(n *lab.Place) bool { return n.Location == to.Location })...)
		reaches := func() []string {
			var names []string
			for _, pair := range must(lab.Reach(t.Context(), from, []*lab.Place{&to.Place}))(t).Pairs {
				if pair.OK {
					names = append(names, pair.From)
				}
			}
			return names
		}
		apply(t, l, p.policy)
		slices.Sort(p.allowed)
		eventually(t, soon, func() error {
			if got := reaches(); !slices.Equal(slices.Sorted(slices.Values(got)), p.allowed) {
				return fmt.Errorf("a policy for %s: %s is reached by %s, want %s", p.what, to.Name, strings.Join(got, " "), strings.Join(p.allowed, " "))
			}
			return nil
		})
		must(l.Kubectl(t.Context(), "delete", "networkpolicy,ciliumnetworkpolicy", "--all"))(t)
		eventually(t, soon, func() error {
			if got := reaches(); len(got) != len(from)-1 {
				return fmt.Errorf("without a policy %s is reached by %s alone", to.Name, strings.Join(got, " "))
			}
			return nil
		})
	}
}
