package cluster_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

const (
	region = "topology.kubernetes.io/region"
	keyA   = "GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg="
	keyB   = "PaK4InuNKdKNEcUhG9pzSadMjOsgiUMlonf4W65Mggs="
)

// byValue compares netip's types, which hide their fields.
var byValue = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b model.PresharedKey) bool { return a == b }),
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func key(text string) model.Key {
	k, err := model.ParseKey(text)
	if err != nil {
		panic(err)
	}
	return k
}

// kubeNode is a Node with annotations given as name=value, where kilo's prefix
// is left out.
func kubeNode(name string, annotations ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-x"}}
	n.Annotations = make(map[string]string)
	for _, a := range annotations {
		name, value, _ := strings.Cut(a, "=")
		n.Annotations["kilo.squat.ai/"+name] = value
	}
	return n
}

// west is a node whose agent has spoken.
func west(more ...string) *corev1.Node {
	return kubeNode("w1", append([]string{
		"key=" + keyA, "mesh-location=west", "internal-ip=192.168.9.9/24",
		"wireguard-ip=10.4.0.2/32", "pod-prefixes=10.244.9.0/24", "endpoint=203.0.113.9:51820",
	}, more...)...)
}

func TestNodeThatSpoke(t *testing.T) {
	n := west(
		"granularity=location", "epoch=7", "asked=leader", "silent=e2, e1", "tunnel-mtu=1420", "tunnel=kernel",
		"internal-ip=fd00::9/64,192.168.9.9/24", "wireguard-ip=10.4.0.2/32,fd00:4::2/128",
		`discovered-endpoints={"`+keyB+`":{"IP":"203.0.113.50","Port":40001,"Zone":""}}`,
		"leader=", "force-endpoint=198.51.100.7:51820", "persistent-keepalive=25",
		"allowed-location-ips=192.0.2.10",
	)
	n.Labels = map[string]string{region: "r1"}
	n.Spec.PodCIDRs = []string{"10.99.0.0/24"}
	got, warnings := cluster.ParseNode(n, region)
	want := model.Node{
		Name: "w1", UID: "uid-of-x", Ready: true, Spoken: true, Location: "west", Key: key(keyA),
		Endpoint:     model.Endpoint{Addr: netip.MustParseAddr("203.0.113.9"), Port: 51820},
		InternalIPs:  prefixes("192.168.9.9/24", "fd00::9/64"),
		WireGuardIPs: addrs("10.4.0.2", "fd00:4::2"),
		PodPrefixes:  prefixes("10.244.9.0/24"), // as published, not spec.podCIDRs
		Granularity:  model.PerLocation, Epoch: 7, Asked: "leader", Silent: []string{"e1", "e2"}, TunnelMTU: 1420, Tunnel: "kernel",
		Discovered: map[model.Key]netip.AddrPort{key(keyB): netip.MustParseAddrPort("203.0.113.50:40001")},
		Leader:     true, ForcedEndpoint: true, Keepalive: 25 * time.Second,
		AllowedLocationIPs: prefixes("192.0.2.10/32"),
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
}

// Before an agent speaks, a node is placed by what its object says.
func TestNodeThatNobodySpokeFor(t *testing.T) {
	n := kubeNode("n9", "location=edge")
	n.Labels = map[string]string{region: "r1"}
	n.Spec.PodCIDRs = []string{"10.244.3.0/24", "fd00:10:244:3::/64"}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n9"},
		{Type: corev1.NodeInternalIP, Address: "fd00::5"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.5"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.6"},
		{Type: corev1.NodeExternalIP, Address: "198.51.100.5"},
	}
	want := model.Node{
		Name: "n9", UID: "uid-of-x", Ready: true, Location: "edge",
		InternalIPs: prefixes("10.0.0.5/32", "fd00::5/128"),
		PodPrefixes: prefixes("10.244.3.0/24", "fd00:10:244:3::/64"),
	}
	got, warnings := cluster.ParseNode(n, region)
	if diff := cmp.Diff(want, got, byValue); diff != "" || len(warnings) != 0 {
		t.Errorf("warnings %v (-want +got)\n%s", warnings, diff)
	}

	t.Run("an agent of Kilo is nobody", func(t *testing.T) {
		// Kilo 0.7 publishes these, and no mesh-location.
		for _, a := range []string{"key=" + keyA, "internal-ip=10.9.9.9/24", "wireguard-ip=10.4.0.1/16", "endpoint=198.51.100.5:51820", "granularity=location", "last-seen=1700000000"} {
			name, value, _ := strings.Cut(a, "=")
			n.Annotations["kilo.squat.ai/"+name] = value
		}
		got, warnings := cluster.ParseNode(n, region)
		if diff := cmp.Diff(want, got, byValue); diff != "" || len(warnings) != 0 {
			t.Errorf("warnings %v (-want +got)\n%s", warnings, diff)
		}
	})
	t.Run("spec.podCIDR of old", func(t *testing.T) {
		n := kubeNode("n9")
		n.Spec.PodCIDR = "10.244.3.0/24"
		if got, _ := cluster.ParseNode(n, region); !cmp.Equal(got.PodPrefixes, prefixes("10.244.3.0/24"), byValue) {
			t.Errorf("got %v", got.PodPrefixes)
		}
	})
	t.Run("forced internal address", func(t *testing.T) {
		n.Annotations["kilo.squat.ai/force-internal-ip"] = "10.0.0.77/24"
		if got, _ := cluster.ParseNode(n, region); !cmp.Equal(got.InternalIPs, prefixes("10.0.0.77/24"), byValue) {
			t.Errorf("got %v", got.InternalIPs)
		}
	})
	t.Run("no internal address", func(t *testing.T) {
		for _, none := range []string{"", "-"} {
			n.Annotations["kilo.squat.ai/force-internal-ip"] = none
			if got, _ := cluster.ParseNode(n, region); len(got.InternalIPs) != 0 {
				t.Errorf("force-internal-ip=%q: got %v", none, got.InternalIPs)
			}
		}
	})
}

// An annotation goes before a label that somebody set, that before the region;
// what is empty says nothing.
func TestLocationPrecedence(t *testing.T) {
	for _, c := range []struct {
		name        string
		annotations []string
		labels      map[string]string
		want        string
		wantLabel   string // as input
	}{
		{"TC12a: empty annotation", []string{"location="}, map[string]string{region: "r1"}, "r1", ""},
		{"TC12b: somebody's label only", nil, map[string]string{"kilo.squat.ai/location": "edge"}, "edge", "edge"},
		{"label before region", nil, map[string]string{"kilo.squat.ai/location": "edge", region: "r1"}, "edge", "edge"},
		{"TC12c: annotation before region", []string{"location=lab"}, map[string]string{region: "r1"}, "lab", ""},
		{"TC12d: annotation removed, our own mirror says lab still", []string{"mirrored-location=lab"}, map[string]string{"kilo.squat.ai/location": "lab", region: "r1"}, "r1", ""},
		{"somebody wrote over our mirror", []string{"mirrored-location=lab"}, map[string]string{"kilo.squat.ai/location": "edge", region: "r1"}, "edge", "edge"},
		{"nothing at all", nil, nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := kubeNode("n", c.annotations...)
			n.Labels = c.labels
			node, _ := cluster.ParseNode(n, region)
			in, _ := cluster.ParseInputs(n, region)
			if node.Location != c.want || in.LocationLabel != c.wantLabel {
				t.Errorf("location %q, want %q; label as input %q, want %q", node.Location, c.want, in.LocationLabel, c.wantLabel)
			}
		})
	}
}

func TestReady(t *testing.T) {
	condition := func(status corev1.ConditionStatus) *corev1.Node {
		n := kubeNode("n")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: status}}
		return n
	}
	deleted := condition(corev1.ConditionTrue)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for _, c := range []struct {
		name string
		node *corev1.Node
		want bool
	}{
		{"True", condition(corev1.ConditionTrue), true},
		{"False", condition(corev1.ConditionFalse), false},
		{"Unknown", condition(corev1.ConditionUnknown), false},
		{"no condition yet", kubeNode("n"), true},
		{"being deleted", deleted, false},
	} {
		if got, _ := cluster.ParseNode(c.node, region); got.Ready != c.want {
			t.Errorf("%s: ready %v, want %v", c.name, got.Ready, c.want)
		}
	}
}

// TC18: a wall clock that is a day off, the node's own or the control plane's, makes no
// difference: nothing is read that is a time.
func TestClocksDoNotMatter(t *testing.T) {
	now := time.Now()
	at := func(offset time.Duration) *corev1.Node {
		n := west("last-seen=" + strconv.FormatInt(now.Add(offset).Unix(), 10)) // Kilo's
		then := metav1.NewTime(now.Add(offset))
		n.CreationTimestamp = then
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: then, LastTransitionTime: then},
			{Type: "KiloMesh", Status: corev1.ConditionFalse, LastHeartbeatTime: then, LastTransitionTime: then},
		}
		return n
	}
	want, _ := cluster.ParseNode(at(0), region)
	wantInputs, _ := cluster.ParseInputs(at(0), region)
	for _, offset := range []time.Duration{-24 * time.Hour, -time.Minute, 24 * time.Hour} {
		got, warnings := cluster.ParseNode(at(offset), region)
		inputs, _ := cluster.ParseInputs(at(offset), region)
		if diff := cmp.Diff(want, got, byValue) + cmp.Diff(wantInputs, inputs, byValue); diff != "" || len(warnings) > 0 {
			t.Errorf("%s off: %v\n%s", offset, warnings, diff)
		}
	}
}

// TC31: an item that cannot be read costs itself and says so.
func TestAllowedLocationIPs(t *testing.T) {
	for _, c := range []struct {
		in      string
		want    []netip.Prefix
		says    []string
		silence bool
	}{
		{in: "192.0.2.10,192.0.2.0/28, 198.51.100.0/24", want: prefixes("192.0.2.0/28", "192.0.2.10/32", "198.51.100.0/24"), silence: true},
		{in: " fd00:5::/64 ,, 10.0.0.9/8", want: prefixes("10.0.0.0/8", "fd00:5::/64"), silence: true},
		{in: "10.0.0.0/8,10.0.0.0/8", want: prefixes("10.0.0.0/8"), silence: true},
		{in: "", want: nil, silence: true},
		{in: "192.0.2.0/33,198.51.100.0/24", want: prefixes("198.51.100.0/24"), says: []string{"kilo.squat.ai/allowed-location-ips", `"192.0.2.0/33"`, "not a prefix"}},
		{in: "a;b;c", want: nil, says: []string{`"a;b;c"`}},
		{in: "a,b,c,d,e", want: nil, says: []string{`"a"`, `"c"`, "and 2 more"}},
	} {
		in, warnings := cluster.ParseInputs(kubeNode("e1", "allowed-location-ips="+c.in), region)
		if !cmp.Equal(in.AllowedLocationIPs, c.want, byValue) {
			t.Errorf("%q: got %v, want %v", c.in, in.AllowedLocationIPs, c.want)
		}
		if c.silence != (len(warnings) == 0) {
			t.Errorf("%q: warnings %v", c.in, warnings)
		}
		wantSays(t, warnings, "node/e1", c.says...)
	}
}

// Every annotation that can be wrong is named, with its value and what would
// be right, and spoils no other.
func TestBadAnnotations(t *testing.T) {
	for _, c := range []struct {
		annotation string
		says       []string
	}{
		{"force-endpoint=198.51.100.1", []string{"force-endpoint", `"198.51.100.1"`, "host:port"}},
		{"force-endpoint=2001:db8::1:51820", []string{"[2001:db8::5]:51820"}},
		{"force-endpoint=198.51.100.1:0", []string{"1 to 65535"}},
		{"force-endpoint=198.51.100.1:70000", []string{"1 to 65535"}},
		{"force-endpoint=198.51.100.300:51820", []string{"neither an IP address nor a DNS name"}},
		{"force-endpoint=127.0.0.1:51820", []string{"not an address of one host"}},
		{"force-endpoint=[fe80::1]:51820", []string{"link-local"}},
		{"force-endpoint=-x.example:51820", []string{"DNS name"}},
		{"force-internal-ip=10.0.0.1/33", []string{"force-internal-ip", "up to 32"}},
		{"force-internal-ip=eth0", []string{"10.0.0.5/24"}},
		{"force-internal-ip=10.0.0.1/24,10.0.0.2/24", []string{"10.0.0.2/24", "second address of one family"}},
		{"persistent-keepalive=25s", []string{"whole seconds"}},
		{"persistent-keepalive=-1", []string{"0 to 65535"}},
		{"persistent-keepalive=65536", []string{"0 to 65535"}},
		{"internal-ip=nonsense", []string{"internal-ip", "agent writes this annotation"}},
		{"wireguard-ip=10.4.0.0.1/32", []string{"wireguard-ip"}},
		{"pod-prefixes=10.244.9.0/24,0.0.0.0/0", []string{"all addresses there are"}},
		{"endpoint=:51820", []string{"kilo.squat.ai/endpoint"}},
		{"granularity=region", []string{"location, full or cross"}},
		{"epoch=-3", []string{"whole number"}},
		{"epoch=18446744073709551615", []string{"kilo.squat.ai/epoch", "from 0 to 9007199254740992"}},
		{"tunnel-mtu=1e3", []string{"bytes"}},
		{"tunnel=magic", []string{"kernel or userspace"}},
		{`discovered-endpoints={"x":{}}`, []string{"not a public key"}},
		{`discovered-endpoints=[]`, []string{`{"KEY"`}},
		{`discovered-endpoints={"` + keyB + `":{"IP":"0.0.0.0","Port":1}}`, []string{"not an address of one host"}},
	} {
		t.Run(c.annotation, func(t *testing.T) {
			good, none := cluster.ParseNode(west(), region)
			if len(none) != 0 {
				t.Fatalf("the node without it has warnings: %v", none)
			}
			got, warnings := cluster.ParseNode(west(c.annotation), region)
			if len(warnings) == 0 || warnings[0].Kind != cluster.BadAnnotation {
				t.Fatalf("warnings: %v", warnings)
			}
			wantSays(t, warnings[:1], "node/w1", c.says...)
			if !got.Spoken || got.Key != good.Key || got.Location != good.Location {
				t.Errorf("the node is not what it was: %+v", got)
			}
		})
	}
}

func TestKeyOfSpokenNodeIsBad(t *testing.T) {
	for _, bad := range []string{"short", keyA[:43], keyA + "=", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="} {
		n := west("key=" + bad)
		n.Spec.PodCIDRs = []string{"10.244.9.0/24"}
		got, _ := cluster.ParseNode(n, region)
		if got.Spoken || !got.Key.IsZero() {
			t.Errorf("key %q: spoken %v, key %v", bad, got.Spoken, got.Key)
		}
		if !cmp.Equal(got.PodPrefixes, prefixes("10.244.9.0/24"), byValue) {
			t.Errorf("key %q: its pods are left in clear: %v", bad, got.PodPrefixes)
		}
	}
}

func TestPodPrefixes(t *testing.T) {
	for _, c := range []struct {
		name, published string
		want            []netip.Prefix
		says            string
	}{
		{"several of one family", "pod-prefixes=10.1.3.0/24,10.1.4.0/24", prefixes("10.1.3.0/24", "10.1.4.0/24"), ""},
		{"both families", "pod-prefixes=10.244.3.0/24,fd00:10:244:3::/64", prefixes("10.244.3.0/24", "fd00:10:244:3::/64"), ""},
		{"none", "pod-prefixes=", nil, cluster.NoPodPrefix},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := west(c.published)
			n.Spec.PodCIDRs = []string{"10.99.0.0/24"}
			got, warnings := cluster.ParseNode(n, region)
			if !cmp.Equal(got.PodPrefixes, c.want, byValue) {
				t.Errorf("got %v, want %v", got.PodPrefixes, c.want)
			}
			if !cmp.Equal(got.InternalIPs, prefixes("192.168.9.9/24"), byValue) {
				t.Errorf("internal address %v is lost", got.InternalIPs)
			}
			if (c.says == "") != (len(warnings) == 0) || c.says != "" && warnings[0].Kind != c.says {
				t.Errorf("warnings %v, want %q", warnings, c.says)
			}
		})
	}
	t.Run("none, as the CNI tunnels by itself", func(t *testing.T) {
		got, warnings := cluster.ParseNode(west("pod-prefixes=", "nodes-only=true"), region)
		if !got.NodesOnly || len(warnings) != 0 {
			t.Errorf("nodes only %v, warnings %v", got.NodesOnly, warnings)
		}
	})
}

// Flags reach other nodes by outputs of their own; what people annotate wins.
func TestSettingsFromFlags(t *testing.T) {
	flags := []string{"flag-leader=true", "flag-force-endpoint=true", "flag-persistent-keepalive=10", "flag-allowed-location-ips=192.0.2.0/24"}
	got, _ := cluster.ParseNode(west(flags...), region)
	if !got.Leader || !got.ForcedEndpoint || got.Keepalive != 10*time.Second || !cmp.Equal(got.AllowedLocationIPs, prefixes("192.0.2.0/24"), byValue) {
		t.Errorf("got %+v", got)
	}
	got, _ = cluster.ParseNode(west(append(flags, "persistent-keepalive=25", "allowed-location-ips=198.51.100.0/24")...), region)
	if got.Keepalive != 25*time.Second || !cmp.Equal(got.AllowedLocationIPs, prefixes("198.51.100.0/24"), byValue) {
		t.Errorf("with annotations: got %+v", got)
	}
	in, _ := cluster.ParseInputs(west(flags...), region)
	if in.Leader || in.Keepalive != 0 || in.AllowedLocationIPs != nil {
		t.Errorf("an output is read as an input: %+v", in)
	}
}

func TestBadAddressOfNode(t *testing.T) {
	n := kubeNode("n")
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "ten"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.5"}}
	n.Spec.PodCIDRs = []string{"10.244.3.0/24", "10.244.4.0/99"}
	in, warnings := cluster.ParseInputs(n, region)
	if !cmp.Equal(in.NodeInternalIPs, addrs("10.0.0.5"), byValue) || !cmp.Equal(in.PodCIDRs, prefixes("10.244.3.0/24"), byValue) {
		t.Errorf("got %v, %v", in.NodeInternalIPs, in.PodCIDRs)
	}
	if len(warnings) != 2 || warnings[0].Kind != cluster.BadNodeAddress || warnings[1].Kind != cluster.BadPodCIDR {
		t.Errorf("warnings %v", warnings)
	}
}

// wantSays checks that the warnings are about object and say all parts.
func wantSays(t *testing.T, warnings []model.Warning, object string, parts ...string) {
	t.Helper()
	var all strings.Builder
	for _, w := range warnings {
		if w.Object != object {
			t.Errorf("warning about %q, want %q", w.Object, object)
		}
		all.WriteString(w.Message + "\n")
	}
	for _, part := range parts {
		if !strings.Contains(all.String(), part) {
			t.Errorf("no warning says %q: %s", part, all.String())
		}
	}
}

func TestLocationThatNoLabelCanHold(t *testing.T) {
	got, warnings := cluster.ParseNode(kubeNode("n", "location=Köln / 2"), region)
	if got.Location != "Köln / 2" || len(warnings) != 1 || warnings[0].Kind != cluster.NoLabel {
		t.Errorf("location %q, warnings %v", got.Location, warnings)
	}
}

func TestMistypedAnnotations(t *testing.T) {
	for name, nearest := range map[string]string{
		"force-endpiont":      "force-endpoint",
		"Location":            "location",
		"leadr":               "leader",
		"force-internalip":    "force-internal-ip",
		"persistent-keepalve": "persistent-keepalive",
		"allowed-location-ip": "allowed-location-ips",
	} {
		_, warnings := cluster.ParseNode(west(name+"=x"), region)
		if len(warnings) != 1 || warnings[0].Kind != cluster.UnknownAnnotation || warnings[0].Object != "node/w1" ||
			!strings.Contains(warnings[0].Message, `"kilo.squat.ai/`+name+`"`) ||
			!strings.HasSuffix(warnings[0].Message, " kilo.squat.ai/"+nearest) {
			t.Errorf("%s: %v, want %s", name, warnings, nearest)
		}
	}
	n := west("last-seen=17", "cni-compatibility-ip=10.244.9.7") // Kilo's
	n.Annotations["kilo.squat.ai.example.test/leadr"] = "another's"
	if _, warnings := cluster.ParseNode(n, region); len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
}
