package cluster_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

// published is what w1's agent says.
func published() model.Published {
	return model.Published{
		Key: key(keyA), Location: "west",
		Endpoint:     model.Endpoint{Addr: netip.MustParseAddr("203.0.113.9"), Port: 51820},
		InternalIPs:  prefixes("192.168.9.9/24", "fd00::9/64"),
		WireGuardIPs: addrs("10.4.0.2", "fd00:4::2"),
		PodPrefixes:  prefixes("10.244.9.0/24"),
		Granularity:  model.PerLocation,
		Epoch:        7, Asked: "leader", TunnelMTU: 1420, Tunnel: "kernel",
		Discovered: map[model.Key]netip.AddrPort{key(keyB): netip.MustParseAddrPort("203.0.113.50:40001")},
	}
}

// apply does to a Node what the API server does with a JSON merge patch.
func apply(t *testing.T, n *corev1.Node, patch []byte) *corev1.Node {
	t.Helper()
	var p struct {
		Metadata struct{ Annotations, Labels map[string]*string }
	}
	decoder := json.NewDecoder(strings.NewReader(string(patch)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	merge := func(have map[string]string, changes map[string]*string) map[string]string {
		out := maps.Clone(have)
		if out == nil {
			out = make(map[string]string)
		}
		for name, value := range changes {
			if value == nil {
				delete(out, name)
			} else {
				out[name] = *value
			}
		}
		return out
	}
	n = n.DeepCopy()
	n.Annotations, n.Labels = merge(n.Annotations, p.Metadata.Annotations), merge(n.Labels, p.Metadata.Labels)
	return n
}

func TestFirstPatch(t *testing.T) {
	n := kubeNode("w1", "leader=yes")
	n.Annotations["example.com/x"] = "y"
	got := apply(t, n, cluster.Patch(n, published()))
	want := map[string]string{
		"example.com/x":                      "y",
		"kilo.squat.ai/leader":               "yes",
		"kilo.squat.ai/key":                  keyA,
		"kilo.squat.ai/mesh-location":        "west",
		"kilo.squat.ai/mirrored-location":    "west",
		"kilo.squat.ai/endpoint":             "203.0.113.9:51820",
		"kilo.squat.ai/internal-ip":          "192.168.9.9/24,fd00::9/64",
		"kilo.squat.ai/wireguard-ip":         "10.4.0.2/32,fd00:4::2/128",
		"kilo.squat.ai/pod-prefixes":         "10.244.9.0/24",
		"kilo.squat.ai/granularity":          "location",
		"kilo.squat.ai/epoch":                "7",
		"kilo.squat.ai/asked":                "leader",
		"kilo.squat.ai/tunnel-mtu":           "1420",
		"kilo.squat.ai/tunnel":               "kernel",
		"kilo.squat.ai/discovered-endpoints": `{"` + keyB + `":{"IP":"203.0.113.50","Port":40001,"Zone":""}}`,
	}
	if diff := cmp.Diff(want, got.Annotations); diff != "" {
		t.Errorf("annotations (-want +got)\n%s", diff)
	}
	wantLabels := map[string]string{"kilo.squat.ai/location": "west", "kilo.squat.ai/tunnel": "kernel"}
	if diff := cmp.Diff(wantLabels, got.Labels); diff != "" {
		t.Errorf("labels (-want +got)\n%s", diff)
	}
	if again := cluster.Patch(got, published()); again != nil {
		t.Errorf("what stands there is written again: %s", again)
	}
}

// A patch names what differs and nothing else.
func TestPatchOfOneChange(t *testing.T) {
	n := kubeNode("w1")
	n = apply(t, n, cluster.Patch(n, published()))
	for _, c := range []struct {
		name   string
		change func(*model.Published)
		want   string
	}{
		{"nothing", func(*model.Published) {}, ""},
		{"epoch", func(p *model.Published) { p.Epoch = 8 }, `{"metadata":{"annotations":{"kilo.squat.ai/epoch":"8"}}}`},
		{"endpoint lost", func(p *model.Published) { p.Endpoint = model.Endpoint{} }, `{"metadata":{"annotations":{"kilo.squat.ai/endpoint":null}}}`},
		{"endpoint by name, resolved or not", func(p *model.Published) {
			p.Endpoint = model.Endpoint{Host: "w1.example.test", Addr: netip.MustParseAddr("203.0.113.9"), Port: 51820}
		}, `{"metadata":{"annotations":{"kilo.squat.ai/endpoint":"w1.example.test:51820"}}}`},
		{"pods lost", func(p *model.Published) { p.PodPrefixes = nil }, `{"metadata":{"annotations":{"kilo.squat.ai/pod-prefixes":null}}}`},
		{"other device", func(p *model.Published) { p.Tunnel = "userspace" }, `{"metadata":{"annotations":{"kilo.squat.ai/tunnel":"userspace"},"labels":{"kilo.squat.ai/tunnel":"userspace"}}}`},
		{"nodes only", func(p *model.Published) { p.NodesOnly = true }, `{"metadata":{"annotations":{"kilo.squat.ai/nodes-only":"true"}}}`},
		{"moved", func(p *model.Published) { p.Location = "south" }, `{"metadata":{"annotations":{"kilo.squat.ai/mesh-location":"south","kilo.squat.ai/mirrored-location":"south"},"labels":{"kilo.squat.ai/location":"south"}}}`},
		{"moved nowhere", func(p *model.Published) { p.Location = "" }, `{"metadata":{"annotations":{"kilo.squat.ai/mesh-location":"","kilo.squat.ai/mirrored-location":null},"labels":{"kilo.squat.ai/location":null}}}`},
		{"a name that no label can hold", func(p *model.Published) { p.Location = "Köln / 2" }, `{"metadata":{"annotations":{"kilo.squat.ai/mesh-location":"Köln / 2","kilo.squat.ai/mirrored-location":null},"labels":{"kilo.squat.ai/location":null}}}`},
		{"learned nothing", func(p *model.Published) { p.Discovered = nil }, `{"metadata":{"annotations":{"kilo.squat.ai/discovered-endpoints":null}}}`},
		{"flags", func(p *model.Published) {
			p.FromFlags = model.FromFlags{Keepalive: 25 * time.Second, AllowedLocationIPs: prefixes("192.0.2.0/24")}
		}, `{"metadata":{"annotations":{"kilo.squat.ai/flag-allowed-location-ips":"192.0.2.0/24","kilo.squat.ai/flag-persistent-keepalive":"25"}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := published()
			c.change(&p)
			if got := string(cluster.Patch(n, p)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// The label is the agent's while it equals what the agent says it mirrored.
func TestLabelOfSomebodyElse(t *testing.T) {
	for _, c := range []struct {
		name        string
		annotations []string
		label       string
		wantLabel   string
		wantMirror  bool
	}{
		{"set before the agent came", nil, "edge", "edge", false},
		{"equal by chance, still theirs", nil, "west", "west", false},
		{"written over ours", []string{"mirrored-location=north"}, "edge", "edge", false},
		{"ours, of where the node was", []string{"mirrored-location=north"}, "north", "west", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := kubeNode("w1", c.annotations...)
			n.Labels = map[string]string{api.Location: c.label}
			n = apply(t, n, cluster.Patch(n, published()))
			_, mirror := n.Annotations[api.MirroredLocation]
			if n.Labels[api.Location] != c.wantLabel || mirror != c.wantMirror {
				t.Errorf("label %q, mirrored %v; want %q, %v", n.Labels[api.Location], mirror, c.wantLabel, c.wantMirror)
			}
			if again := cluster.Patch(n, published()); again != nil {
				t.Errorf("written again: %s", again)
			}
			n = apply(t, n, cluster.ClearPatch(n))
			if _, left := n.Labels[api.Location]; left == c.wantMirror {
				t.Errorf("after clearing, the label is there: %v", left)
			}
		})
	}
}

// TC42: whatever of ours is on a Node or missing from it, clearing takes all of it
// and nothing else.
func TestClear(t *testing.T) {
	n := kubeNode("w1", "leader=", "location=west", "force-endpoint=a:1", "last-seen=17")
	n.Annotations["flannel.alpha.coreos.com/public-ip"] = "192.168.9.9"
	n.Labels = map[string]string{region: "r1"}
	if patch := cluster.ClearPatch(n); patch != nil {
		t.Errorf("nothing of ours is there, but it is patched: %s", patch)
	}
	full := apply(t, n, cluster.Patch(n, published()))
	for _, missing := range append([]string{"none"}, api.Outputs()...) {
		partial := full.DeepCopy()
		delete(partial.Annotations, missing)
		got := apply(t, partial, cluster.ClearPatch(partial))
		want := n.Labels
		if missing == api.MirroredLocation {
			// Without it the label is somebody's, as far as anyone can tell.
			want = map[string]string{region: "r1", api.Location: "west"}
		}
		if diff := cmp.Diff(n.Annotations, got.Annotations); diff != "" {
			t.Errorf("without %s: annotations (-want +got)\n%s", missing, diff)
		}
		if diff := cmp.Diff(want, got.Labels); diff != "" {
			t.Errorf("without %s: labels (-want +got)\n%s", missing, diff)
		}
	}
}

// What is published is what others read: random facts come back as they were.
func TestPublishedIsReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func(n int) bool { return r.IntN(n) == 0 }
	for range 2000 {
		p := published()
		changes := []func(){
			func() { p.Endpoint = model.Endpoint{} },
			func() { p.Endpoint = model.Endpoint{Host: "x.example.test", Port: uint16(1 + r.IntN(65535))} },
			func() { p.Endpoint = model.Endpoint{Addr: netip.MustParseAddr("2001:db8::7"), Port: 51820} },
			func() { p.InternalIPs = p.InternalIPs[:1] },
			func() { p.InternalIPs = nil },
			func() { p.WireGuardIPs = nil },
			func() { p.PodPrefixes = prefixes("10.1.3.0/24", "10.1.4.0/24", "fd00:10::/64") },
			func() { p.Location = []string{"", "Köln / 2", "a,b", "x"}[r.IntN(4)] },
			func() { p.Granularity = []model.Granularity{model.Full, model.Cross, ""}[r.IntN(3)] },
			func() { p.Epoch = r.Uint64N(model.MaxEpoch + 1) },
			func() { p.Discovered = nil },
			func() { p.TunnelMTU, p.Tunnel, p.NodesOnly = 0, "userspace", true },
			func() { p.Silent = []string{"e1", "e2"} },
			func() {
				p.FromFlags = model.FromFlags{Leader: true, ForcedEndpoint: true, Keepalive: time.Minute, AllowedLocationIPs: prefixes("192.0.2.0/24")}
			},
		}
		for _, change := range changes {
			if some(4) {
				change()
			}
		}
		n := kubeNode("w1")
		if some(2) {
			n = west()
		}
		n = apply(t, n, cluster.Patch(n, p))
		got, _ := cluster.ParseNode(n, region)
		want := model.Node{
			Name: "w1", UID: "uid-of-x", Ready: true, Spoken: true, Key: p.Key, Location: p.Location,
			Endpoint: p.Endpoint, InternalIPs: p.InternalIPs, WireGuardIPs: p.WireGuardIPs, PodPrefixes: p.PodPrefixes,
			Granularity: p.Granularity, Epoch: p.Epoch, Asked: p.Asked, Discovered: p.Discovered, Silent: p.Silent,
			TunnelMTU: p.TunnelMTU, Tunnel: p.Tunnel, NodesOnly: p.NodesOnly,
			Leader: p.FromFlags.Leader, ForcedEndpoint: p.FromFlags.ForcedEndpoint,
			Keepalive: p.FromFlags.Keepalive, AllowedLocationIPs: p.FromFlags.AllowedLocationIPs,
		}
		if diff := cmp.Diff(want, got, byValue); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		if again := cluster.Patch(n, p); again != nil {
			t.Fatalf("written again: %s", again)
		}
	}
}

// Every annotation that an agent may write is listed, else it would never be
// taken off again.
func TestOutputsAreComplete(t *testing.T) {
	p := published()
	p.NodesOnly, p.Silent, p.Slot = true, []string{"e1"}, 1
	p.FromFlags = model.FromFlags{Leader: true, ForcedEndpoint: true, Keepalive: time.Second, AllowedLocationIPs: prefixes("192.0.2.0/24")}
	n := kubeNode("w1")
	got := slices.Sorted(maps.Keys(apply(t, n, cluster.Patch(n, p)).Annotations))
	want := slices.Sorted(slices.Values(api.Outputs()))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-listed +written)\n%s", diff)
	}
}

func TestConditionPatch(t *testing.T) {
	long, now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	n := kubeNode("w1")
	first := cluster.ConditionPatch(n, true, "MeshReady", "all is well", now)
	want := `{"status":{"conditions":[{"type":"KiloMesh","status":"True","lastHeartbeatTime":"2026-01-02T00:00:00Z","lastTransitionTime":"2026-01-02T00:00:00Z","reason":"MeshReady","message":"all is well"}]}}`
	if string(first) != want {
		t.Errorf("got  %s\nwant %s", first, want)
	}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: api.MeshCondition, Status: corev1.ConditionTrue, Reason: "MeshReady", Message: "all is well"},
	}
	n.Status.Conditions[1].LastTransitionTime.Time = long
	if got := cluster.ConditionPatch(n, true, "MeshReady", "all is very well", now); got != nil {
		t.Errorf("no transition, but it is written: %s", got)
	}
	if got := string(cluster.ConditionPatch(n, true, "Alone", "x", now)); !strings.Contains(got, `"lastTransitionTime":"2026-01-01T00:00:00Z"`) {
		t.Errorf("the reason alone changed, the transition should keep its time: %s", got)
	}
	if got := string(cluster.ConditionPatch(n, false, "NoGateway", "x", now)); !strings.Contains(got, `"status":"False"`) || !strings.Contains(got, `"lastTransitionTime":"2026-01-02T00:00:00Z"`) {
		t.Errorf("got %s", got)
	}
}
