package apiserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

const presharedKey = "aPxGwq8zERHQ3Q1cOZFdJ+cvJX5Ka4mLN38AyYKYF10="

// agent runs core/cluster as node's agent until the test or stop ends it.
func agent(s *server, node, dir string) (c *cluster.Cluster, stop func()) {
	s.t.Helper()
	c = cluster.New(cluster.Config{
		REST: s.config(agentToken), Node: node, TopologyLabel: "topology.kubernetes.io/region", Dir: dir, Version: "test",
		WireGuardSubnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")},
		Log:              slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("agent", node),
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				s.t.Errorf("Run: %v", err)
			}
		}
	}
	s.t.Cleanup(stop)
	return c, stop
}

// sees waits until the snapshot is complete, or not, and as wanted.
func sees(s *server, c *cluster.Cluster, complete bool, what string, ok func(model.Snapshot, []model.Warning) bool) {
	s.t.Helper()
	s.wait(time.Minute, what, func() (bool, string) {
		snapshot, warnings, is := c.Snapshot()
		return is == complete && ok(snapshot, warnings), fmt.Sprintf("complete %v, %+v, %v", is, snapshot, warnings)
	})
}

func has(warnings []model.Warning, kind, object string) bool {
	return slices.ContainsFunc(warnings, func(w model.Warning) bool { return w.Kind == kind && w.Object == object })
}

func condition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func peerNames(s model.Snapshot) string {
	var names []string
	for _, p := range s.Peers {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func published() model.Published {
	return model.Published{
		Key: model.Key{1}, Location: "east", Endpoint: model.Endpoint{Addr: netip.MustParseAddr("198.51.100.1"), Port: 51820},
		InternalIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, WireGuardIPs: []netip.Addr{netip.MustParseAddr("10.4.0.1")},
		PodPrefixes: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, Granularity: model.PerLocation, Epoch: 1, Tunnel: "kernel",
	}
}

// The story of an agent's first days, in one cluster.
func TestClusterOnAPIServer(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	s.node(ctx, "e1", "10.0.0.1", func(n *corev1.Node) {
		n.Labels = map[string]string{"topology.kubernetes.io/region": "r1"}
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.1.0/24", []string{"10.244.1.0/24"}
		n.Annotations = map[string]string{api.Leader: "", "example.com/mine": "kept"}
	})
	dir := t.TempDir()
	c, stop := agent(s, "e1", dir)

	t.Run("without rights", func(t *testing.T) {
		missing, err := c.MissingPermissions(ctx)
		needed := slices.DeleteFunc(cluster.Permissions(), func(p cluster.Permission) bool { return p.Optional })
		if err != nil || len(missing) != len(needed) || !slices.Contains(missing, "patch nodes/status") {
			t.Fatalf("missing %v, error %v", missing, err)
		}
		sees(s, c, false, "a word about the rights", func(_ model.Snapshot, w []model.Warning) bool {
			return has(w, cluster.CannotWatch, "node/e1")
		})
	})

	t.Run("Nodes without a definition of Peers", func(t *testing.T) {
		s.apply("rbac.yaml")
		s.wait(time.Minute, "the rights to count", func() (bool, string) {
			missing, err := c.MissingPermissions(ctx)
			return err == nil && len(missing) == 0, fmt.Sprint(missing, err)
		})
		sees(s, c, true, "Nodes and no Peers", func(s model.Snapshot, w []model.Warning) bool {
			return len(s.Nodes) == 1 && s.Nodes[0].Location == "r1" && len(s.Peers) == 0 && has(w, cluster.CannotWatch, "node/e1")
		})
		snapshot, _, _ := c.Snapshot()
		if snapshot.Nodes[0].Spoken {
			t.Error("nobody has spoken for the node yet")
		}
		if want := netip.MustParseAddrPort(fmt.Sprintf("192.0.2.77:%d", s.port)); !slices.Contains(snapshot.APIServers, want) {
			t.Errorf("API servers %v, want %v among them", snapshot.APIServers, want)
		}
		in, _, known := c.Inputs()
		if !known || !in.Leader || in.TopologyLabel != "r1" || len(in.NodeInternalIPs) != 1 {
			t.Errorf("inputs %+v, known %v", in, known)
		}
	})

	t.Run("Peers as Kilo stored them", func(t *testing.T) {
		s.apply("crds.yaml")
		s.kubectl("", "wait", "--for=condition=Established", "crd/peers.kilo.squat.ai")
		peer := func(name, key, spec string) string {
			return "---\napiVersion: kilo.squat.ai/v1alpha1\nkind: Peer\nmetadata: {name: " + name + "}\nspec: {publicKey: " + key + ", " + spec + "}\n"
		}
		keys := []string{"GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg=", "PaK4InuNKdKNEcUhG9pzSadMjOsgiUMlonf4W65Mggs=", model.Key{5}.String(), model.Key{6}.String(), model.Key{7}.String(), model.Key{8}.String()}
		s.kubectl(peer("a-object", keys[0], `allowedIPs: [10.5.0.1/32], endpoint: {dnsOrIP: {ip: 203.0.113.5}, port: 51820}`)+
			peer("b-text", keys[1], `allowedIPs: [10.5.0.2/32], endpoint: "203.0.113.6:51820", persistentKeepalive: 10`)+
			peer("c-old", keys[2], `allowedIPs: [10.5.0.3/32], endpoint: {ip: 203.0.113.7, port: 51820}`)+
			peer("d-secret", keys[3], `allowedIPs: [10.5.0.4/32], presharedKey: "`+presharedKey+`"`)+
			peer("e-bad", keys[4], `allowedIPs: [10.5.0.5/32], endpoint: {dnsOrIP: {ip: home}, port: 1}`)+
			peer("f-thief", keys[5], `allowedIPs: [10.244.1.0/24]`), "apply", "--filename=-")
		sees(s, c, true, "four good Peers and two warnings", func(s model.Snapshot, w []model.Warning) bool {
			return peerNames(s) == "a-object b-text c-old d-secret" &&
				has(w, cluster.BadPeer, "peer/e-bad") && has(w, cluster.PeerTakesCluster, "peer/f-thief") && !has(w, cluster.CannotWatch, "node/e1")
		})
		snapshot, _, _ := c.Snapshot()
		for i, want := range []string{"203.0.113.5:51820", "203.0.113.6:51820", "203.0.113.7:51820", ""} {
			if got := snapshot.Peers[i].Endpoint.String(); got != want {
				t.Errorf("endpoint of %s: %q, want %q", snapshot.Peers[i].Name, got, want)
			}
		}
		if snapshot.Peers[3].PresharedKey.IsZero() {
			t.Error("the preshared key was lost")
		}
		s.kubectl("", "patch", "peer", "e-bad", "--type=merge", "--patch", `{"spec":{"endpoint":{"dnsOrIP":{"ip":"203.0.113.8"}}}}`)
		sees(s, c, true, "the mended Peer at once", func(s model.Snapshot, w []model.Warning) bool {
			return peerNames(s) == "a-object b-text c-old d-secret e-bad" && !has(w, cluster.BadPeer, "peer/e-bad")
		})
	})

	t.Run("publish", func(t *testing.T) {
		if err := c.Publish(ctx, published()); err != nil {
			t.Fatal(err)
		}
		after := s.get("e1")
		// Again at once, before the watch can have told, and later.
		for range 5 {
			if err := c.Publish(ctx, published()); err != nil {
				t.Fatal(err)
			}
		}
		sees(s, c, true, "what was published", func(s model.Snapshot, _ []model.Warning) bool {
			return s.Nodes[0].Spoken && s.Nodes[0].Location == "east" && s.Nodes[0].Leader
		})
		if err := c.Publish(ctx, published()); err != nil {
			t.Fatal(err)
		}
		if n := s.get("e1"); n.ResourceVersion != after.ResourceVersion {
			t.Errorf("written again: version %s after %s", n.ResourceVersion, after.ResourceVersion)
		}
		if after.Annotations["example.com/mine"] != "kept" || after.Labels[api.Location] != "east" || after.Labels[api.Tunnel] != "kernel" {
			t.Errorf("annotations %v, labels %v", after.Annotations, after.Labels)
		}
		in, _, _ := c.Inputs()
		if in.LocationLabel != "" {
			t.Errorf("our own label %q is read as an input", in.LocationLabel)
		}
		// What somebody deletes comes back by the next Publish.
		s.kubectl("", "annotate", "node", "e1", api.Tunnel+"-")
		s.wait(time.Minute, "the deleted annotation to come back", func() (bool, string) {
			if err := c.Publish(ctx, published()); err != nil {
				t.Fatal(err)
			}
			return s.get("e1").Annotations[api.Tunnel] == "kernel", "it is not there"
		})
	})

	t.Run("condition", func(t *testing.T) {
		if err := c.Condition(ctx, false, "NoGateway", "nobody serves"); err != nil {
			t.Fatal(err)
		}
		if err := c.Condition(ctx, true, "MeshReady", "all is well"); err != nil {
			t.Fatal(err)
		}
		before := s.get("e1")
		if err := c.Condition(ctx, true, "MeshReady", "all is still well"); err != nil {
			t.Fatal(err)
		}
		after := s.get("e1")
		if after.ResourceVersion != before.ResourceVersion {
			t.Error("no transition, but it was written")
		}
		if mesh := condition(after, api.MeshCondition); mesh == nil || mesh.Status != corev1.ConditionTrue || mesh.Message != "all is well" || condition(after, corev1.NodeReady) == nil {
			t.Errorf("conditions %+v", after.Status.Conditions)
		}
	})

	t.Run("events", func(t *testing.T) {
		second, _ := agent(s, "e2", "")
		sees(s, second, false, "a word that the node is unknown", func(_ model.Snapshot, w []model.Warning) bool {
			return has(w, cluster.NoSuchNode, "node/e2")
		})
		s.kubectl("", "annotate", "node", "e1", api.PersistentKeepalive+"=soon")
		sees(s, c, true, "the bad annotation", func(_ model.Snapshot, w []model.Warning) bool {
			return has(w, cluster.BadAnnotation, "node/e1")
		})
		_, warnings, _ := c.Snapshot()
		for range 3 {
			for _, w := range warnings {
				c.Event(ctx, w)
				second.Event(ctx, w)
			}
		}
		s.wait(time.Minute, "one Event a warning", func() (bool, string) {
			list, err := s.admin().CoreV1().Events("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range list.Items {
				if e.Source.Component == "kilo" {
					got = append(got, e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name+" "+e.Reason+" by "+e.ReportingInstance)
				}
			}
			slices.Sort(got)
			return slices.Equal(got, []string{"Node/e1 BadAnnotation by e1", "Peer/f-thief PeerTakesCluster by e1"}), strings.Join(got, ", ")
		})
		if out := s.kubectl("", "describe", "node", "e1"); !strings.Contains(out, "BadAnnotation") {
			t.Errorf("kubectl describe node does not show it:\n%s", out)
		}
		if out := s.kubectl("", "describe", "peer", "f-thief"); !strings.Contains(out, "PeerTakesCluster") {
			t.Errorf("kubectl describe peer does not show it:\n%s", out)
		}
	})

	t.Run("at rest nothing is asked", func(t *testing.T) {
		before := len(s.requests())
		time.Sleep(15 * time.Second)
		if more := s.requests()[before:]; len(more) != 0 {
			t.Errorf("requests: %+v", more)
		}
		for _, r := range s.requests() {
			if r.UserAgent != "kg/test" {
				t.Errorf("a request of %q: %+v", r.UserAgent, r)
				break
			}
		}
	})

	t.Run("the API server goes away", func(t *testing.T) {
		known, _, _ := c.Snapshot()
		s.down()
		sees(s, c, true, "the last known, and a word about it", func(now model.Snapshot, w []model.Warning) bool {
			return has(w, cluster.CannotWatch, "node/e1") && len(now.Nodes) == len(known.Nodes) && len(now.Peers) == len(known.Peers)
		})
		if err := c.Publish(ctx, published()); err != nil {
			t.Errorf("there was nothing to write, but: %v", err)
		}
		changed := published()
		changed.Epoch = 2
		if err := c.Publish(ctx, changed); err == nil {
			t.Error("nothing can have been written")
		}
		stop() // what is on disk is what the next process starts with
		again, _ := agent(s, "e1", dir)
		snapshot, _, complete := again.Snapshot()
		if complete || len(snapshot.Nodes) != 1 || !snapshot.Nodes[0].Spoken || peerNames(snapshot) != peerNames(known) {
			t.Errorf("from disk: complete %v, %+v", complete, snapshot)
		}
		if i := slices.IndexFunc(snapshot.Peers, func(p model.Peer) bool { return p.Name == "d-secret" }); i < 0 || snapshot.Peers[i].PresharedKey.IsZero() {
			t.Error("the preshared key did not survive")
		}
		if in, _, is := again.Inputs(); is || !in.Leader {
			t.Errorf("inputs from disk: %+v, known %v", in, is)
		}
		s.up()
		sees(s, again, true, "the API server's word again", func(s model.Snapshot, w []model.Warning) bool {
			return len(s.Nodes) == 1 && !has(w, cluster.CannotWatch, "node/e1")
		})
		c = again
	})

	t.Run("clear", func(t *testing.T) {
		for range 2 {
			if err := c.Clear(ctx); err != nil {
				t.Fatal(err)
			}
		}
		n := s.get("e1")
		for _, name := range api.Outputs() {
			if value, left := n.Annotations[name]; left {
				t.Errorf("left: %s=%s", name, value)
			}
		}
		if len(n.Status.Conditions) != 1 || len(n.Labels) != 1 || n.Annotations["example.com/mine"] != "kept" {
			t.Errorf("conditions %+v, labels %v, annotations %v", n.Status.Conditions, n.Labels, n.Annotations)
		}
	})

	t.Run("the Node goes away", func(t *testing.T) {
		s.kubectl("", "delete", "node", "e1")
		sees(s, c, false, "an incomplete snapshot", func(_ model.Snapshot, w []model.Warning) bool {
			return has(w, cluster.NoSuchNode, "node/e1")
		})
		if err := c.Clear(ctx); err != nil {
			t.Errorf("clearing a Node that is gone: %v", err)
		}
	})
}
