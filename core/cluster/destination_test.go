package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/model"
)

// What stands in a namespace of a cluster, as the API server would show it.
func shop() []any {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "shop"} }
	pod := func(name, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name), Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	slice := func(name, service string, ips ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), Endpoints: []discoveryv1.Endpoint{{Addresses: ips}}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		return s
	}
	return []any{
		&corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.80", ClusterIPs: []string{"10.96.0.80", "fd00:96::80"}}},
		&corev1.Service{ObjectMeta: meta("db"), Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
		&corev1.Service{ObjectMeta: meta("away"), Spec: corev1.ServiceSpec{ExternalName: "example.com"}},
		slice("web-1", "web", "10.244.1.8"), slice("db-1", "db", "10.244.1.9", "10.244.2.9"), slice("db-2", "db", "fd00:244::9"), slice("named", "db", "db.example.com"),
		pod("web-0", "10.244.1.8", nil), pod("db-0", "10.244.1.9", nil),
		pod("host", "10.0.0.1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod("done", "10.244.1.7", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
}

func destinations(t *testing.T, objects []any) map[string]map[string]target {
	t.Helper()
	out := map[string]map[string]target{servicesResource: {}, slicesResource: {}, podsResource: {}}
	for _, o := range objects {
		slimmed, err := slimTarget(o)
		if err != nil {
			t.Fatal(err)
		}
		name, value, ok := readTarget(slimmed)
		if !ok {
			t.Fatalf("%T is not read", o)
		}
		switch o.(type) {
		case *corev1.Service:
			out[servicesResource][name] = value
		case *discoveryv1.EndpointSlice:
			out[slicesResource][name] = value
		case *corev1.Pod:
			out[podsResource][name] = value
		}
	}
	return out
}

func TestWhatADestinationIs(t *testing.T) {
	objects := destinations(t, shop())
	for _, c := range []struct{ service, want, missing string }{
		{"web", "10.96.0.80/32 fd00:96::80/128", ""},
		{"db", "10.244.1.9/32 10.244.2.9/32 fd00:244::9/128", ""},
		{"away", "", "no cluster IP"},
		{"gone", "", "no such Service"},
		{"", "10.96.0.80/32 10.244.1.8/32 10.244.1.9/32 fd00:96::80/128", ""},
	} {
		got, missing := resolveDestination(model.NamedDestination{Namespace: "shop", Service: c.service}, objects)
		var texts []string
		for _, p := range got {
			texts = append(texts, p.String())
		}
		slices.Sort(texts)
		want := strings.Fields(c.want)
		slices.Sort(want)
		if !slices.Equal(texts, want) || !strings.Contains(missing, c.missing) || (missing == "") != (c.missing == "") {
			t.Errorf("%q is %v (%s), want %s (%s)", c.service, texts, missing, c.want, c.missing)
		}
	}
}

// A Peer may speak to nothing that nobody has named the address of: neither before
// the API server speaks, nor where it refuses to.
func TestDestinationsThatAreNotKnown(t *testing.T) {
	web := model.NamedDestination{Namespace: "shop", Service: "web"}
	at := []netip.Prefix{netip.MustParsePrefix("10.96.0.80/32")}
	s := model.Snapshot{Peers: []model.Peer{{Name: "guest", Named: []model.NamedDestination{web}}, {Name: "laptop"}}}
	earlier := web
	earlier.Addresses = at
	before := []model.Peer{{Name: "other", Named: []model.NamedDestination{earlier}}}
	for _, c := range []struct {
		what          string
		addresses     []netip.Prefix
		why           string
		answered      bool
		before        []model.Peer
		want          []netip.Prefix
		waits, warned bool
	}{
		{"known", at, "", true, nil, at, false, false},
		{"not yet", nil, "", false, nil, nil, true, false},
		{"not yet, and known before", nil, "", false, before, at, true, false},
		{"refused", nil, "the API server refuses to show them", true, before, nil, false, true},
	} {
		got, warnings, waiting := destinationsFor(s, func(model.NamedDestination) ([]netip.Prefix, string, bool) { return c.addresses, c.why, c.answered }, c.before)
		guest := &got.Peers[0]
		if !slices.Equal(guest.Named[0].Addresses, c.want) || waiting != c.waits || (len(warnings) == 1) != c.warned || !guest.Limited() {
			t.Errorf("%s: %v, waiting %v, %v", c.what, guest.Named, waiting, warnings)
		}
		if got.Peers[1].Limited() || s.Peers[0].Named[0].Addresses != nil {
			t.Errorf("%s: another Peer is limited, or the snapshot that was given is another one", c.what)
		}
	}
}

// What is watched for the Peers that there are, and nothing more.
func TestWhatIsWatchedForDestinations(t *testing.T) {
	news := 0
	d := newDestinationStore(func() { news++ })
	started := map[destinationKey]*demand[target]{}
	d.start = func(k destinationKey, s *demand[target]) {
		started[k] = s
		s.source, s.stop = &source{synced: true, answered: true}, func() { delete(started, k) }
	}
	watched := func() string {
		var out []string
		for k := range started {
			out = append(out, k.namespace+"/"+k.resource)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	peer := func(named ...model.NamedDestination) []model.Peer { return []model.Peer{{Named: named}} }
	web := model.NamedDestination{Namespace: "shop", Service: "web"}
	for _, c := range []struct {
		peers []model.Peer
		want  string
	}{
		{nil, ""},
		{peer(web), "shop/endpointslices shop/services"},
		{peer(web, model.NamedDestination{Namespace: "dev"}), "dev/pods dev/services shop/endpointslices shop/services"},
		{peer(web), "shop/endpointslices shop/services"},
	} {
		d.wantFor(c.peers)
		if got := watched(); got != c.want {
			t.Errorf("for %v watched %q, want %q", c.peers, got, c.want)
		}
	}
	services := started[destinationKey{servicesResource, "shop"}]
	for range 2 { // the same again is no news
		_, value, _ := readTarget(shop()[0])
		d.set(services, "web", &value)
	}
	if got, why, answered := d.get(web); len(got) != 2 || why != "" || !answered || news != 1 {
		t.Errorf("%v, %q, answered %v, told %d times", got, why, answered, news)
	}
	d.set(services, "web", nil)
	if got, why, _ := d.get(web); len(got) != 0 || why != "there is no such Service" || news != 2 {
		t.Errorf("after it went: %v, %q, told %d times", got, why, news)
	}
	d.wantFor(nil)
	if got := watched(); got != "" {
		t.Errorf("with no Peer %q are watched", got)
	}
}
