package apiserver_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

// The ranges of Services come from the API server, whatever they become, and
// Peers inside one are refused. An agent that may not see them goes on without,
// at once; a tool sees the same as an agent.
func TestServiceRanges(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	s.node(ctx, "e1", "10.0.0.1", func(n *corev1.Node) {})
	s.apply("rbac.yaml")
	s.apply("crds.yaml")
	s.kubectl("", "wait", "--for=condition=Established", "crd/peers.kilo.squat.ai")
	const peers = `
apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata: {name: in-default}
spec: {publicKey: "GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg=", allowedIPs: [10.96.4.0/24]}
---
apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata: {name: in-added}
spec: {publicKey: "PaK4InuNKdKNEcUhG9pzSadMjOsgiUMlonf4W65Mggs=", allowedIPs: [10.200.0.16/28]}
`
	s.kubectl(peers, "apply", "--filename=-")
	added := "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: added}\nspec: {cidrs: [10.200.0.0/24]}\n"

	c, stop := agent(s, "e1", t.TempDir())
	ranges := func(want ...string) func(model.Snapshot, []model.Warning) bool {
		return func(s model.Snapshot, w []model.Warning) bool {
			return strings.Join(texts(s.ServicePrefixes), " ") == strings.Join(want, " ")
		}
	}
	sees(s, c, true, "the default range, and one Peer outside of it", func(snapshot model.Snapshot, w []model.Warning) bool {
		return ranges("10.96.0.0/12")(snapshot, w) && peerNames(snapshot) == "in-added" && has(w, cluster.PeerTakesCluster, "peer/in-default")
	})
	s.kubectl(added, "apply", "--filename=-")
	sees(s, c, true, "the added range, and no Peer", func(snapshot model.Snapshot, w []model.Warning) bool {
		return ranges("10.96.0.0/12", "10.200.0.0/24")(snapshot, w) && peerNames(snapshot) == "" && has(w, cluster.PeerTakesCluster, "peer/in-added")
	})
	shown, _, err := cluster.Load(ctx, cluster.Config{REST: s.config(adminToken)})
	if err != nil || !ranges("10.96.0.0/12", "10.200.0.0/24")(shown, nil) || peerNames(shown) != "" {
		t.Errorf("a tool sees %v, Peers %q (%v)", shown.ServicePrefixes, peerNames(shown), err)
	}
	s.kubectl("", "delete", "servicecidr", "added")
	sees(s, c, true, "the default range alone again", func(snapshot model.Snapshot, w []model.Warning) bool {
		return ranges("10.96.0.0/12")(snapshot, w) && peerNames(snapshot) == "in-added"
	})
	stop()

	// Without the right to see them.
	roles := s.admin().RbacV1().ClusterRoles()
	role, err := roles.Get(ctx, "kilo", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range role.Rules {
		if slices.Contains(role.Rules[i].Resources, "servicecidrs") {
			role.Rules = slices.Delete(role.Rules, i, i+1)
			break
		}
	}
	if _, err := roles.Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	blind, stop := agent(s, "e1", "")
	complains := func(w []model.Warning) bool {
		return slices.ContainsFunc(w, func(w model.Warning) bool {
			return w.Kind == cluster.CannotWatch && strings.Contains(w.Message, "servicecidrs") && strings.Contains(w.Message, "--service-cidr")
		})
	}
	sees(s, blind, true, "a whole snapshot without ranges, and why", func(snapshot model.Snapshot, w []model.Warning) bool {
		return len(snapshot.Nodes) == 1 && len(snapshot.ServicePrefixes) == 0 && complains(w)
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the snapshot took %s: it waited for what it may not see", took)
	}
	if missing, err := blind.MissingPermissions(ctx); err != nil || len(missing) != 0 {
		t.Errorf("missing permissions %v (%v): the mesh works without", missing, err)
	}
	stop()

	// The flag's word goes over the server's, and nobody is asked.
	told := cluster.New(cluster.Config{REST: s.config(agentToken), Node: "e1", ServicePrefixes: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}, Version: "test"})
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- told.Run(running) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	sees(s, told, true, "the flag's range, and no complaint", func(snapshot model.Snapshot, w []model.Warning) bool {
		return ranges("10.200.0.0/16")(snapshot, w) && !complains(w) && peerNames(snapshot) == "in-default"
	})
}

func texts(prefixes []netip.Prefix) (out []string) {
	for _, p := range prefixes {
		out = append(out, fmt.Sprint(p))
	}
	return out
}
