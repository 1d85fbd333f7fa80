package cluster

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

const seedKey = "GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg="

// Whatever stands in an annotation, reading it neither fails nor spoils what
// the others say, and writing what was read comes to the same.
func FuzzParseNode(f *testing.F) {
	names := append([]string{api.Location, api.ForceEndpoint, api.ForceInternalIP, api.Leader, api.PersistentKeepalive, api.AllowedLocationIPs}, api.Outputs()...)
	for i := range names {
		for _, value := range []string{"", "-", "10.0.0.1/24", "fd00::1/64,10.0.0.1/24", "192.0.2.10,192.0.2.0/28", "203.0.113.5:51820", "[2001:db8::5]:51820", "home.example.test:1", "25", seedKey,
			`{"` + seedKey + `":{"IP":"203.0.113.50","Port":40001,"Zone":""}}`, "location", "kernel", "true"} {
			f.Add(uint8(i), value, "10.0.0.5", "10.244.1.0/24")
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, value, address, podCIDR string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{
			api.Key: seedKey, api.MeshLocation: "east", api.InternalIP: "10.0.0.1/24", api.PodPrefixes: "10.244.1.0/24",
		}}}
		n.Annotations[names[int(which)%len(names)]] = value
		n.Spec.PodCIDRs = []string{podCIDR}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}

		node, warnings := ParseNode(n, "region")
		if node.Name != "n" || !node.Ready {
			t.Fatalf("the node is not itself: %+v", node)
		}
		for _, w := range warnings {
			if w.Object != "node/n" || len(w.Message) > 2000 {
				t.Fatalf("warning of %d bytes about %s", len(w.Message), w.Object)
			}
		}
		for _, p := range slices.Concat(node.PodPrefixes, node.AllowedLocationIPs) {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				t.Fatalf("prefix %v", p)
			}
		}
		for _, p := range node.InternalIPs {
			wantUsable(t, p.Addr())
		}
		for _, a := range node.WireGuardIPs {
			wantUsable(t, a)
		}
		if len(node.InternalIPs) > 2 || len(node.WireGuardIPs) > 2 {
			t.Fatalf("more than one address of a family: %v, %v", node.InternalIPs, node.WireGuardIPs)
		}
		if !node.Spoken {
			return
		}
		// What was read can be said, is read alike, and is then not written again.
		said := model.Published{
			Key: node.Key, Location: node.Location, Endpoint: node.Endpoint, InternalIPs: node.InternalIPs,
			WireGuardIPs: node.WireGuardIPs, PodPrefixes: node.PodPrefixes, Granularity: node.Granularity,
			Epoch: node.Epoch, Asked: node.Asked, Discovered: node.Discovered, TunnelMTU: node.TunnelMTU,
			Tunnel: node.Tunnel, NodesOnly: node.NodesOnly, Silent: node.Silent,
		}
		clean := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: outputs(said)}}
		again, _ := ParseNode(clean, "region")
		again.Leader, again.ForcedEndpoint, again.Keepalive, again.AllowedLocationIPs = node.Leader, node.ForcedEndpoint, node.Keepalive, node.AllowedLocationIPs
		if !reflect.DeepEqual(node, again) {
			t.Fatalf("read %+v\nback %+v", node, again)
		}
	})
}

func wantUsable(t *testing.T, a netip.Addr) {
	t.Helper()
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		t.Fatalf("address %v", a)
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"203.0.113.5:51820", "[2001:db8::5]:51820", "home.example.test:1", "[::ffff:203.0.113.5]:7", "2001:db8::1:51820", ":1", "a:0", "[fe80::1%eth0]:1", "300.1.2.3:4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseEndpoint(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if e.Port == 0 || (e.Host == "") == !e.Addr.IsValid() {
			t.Fatalf("%q: %+v", s, e)
		}
		if again, err := parseEndpoint(e.String()); err != nil || again != e {
			t.Fatalf("%q is written %q, which is read as %+v, %v", s, e.String(), again, err)
		}
	})
}

func FuzzParsePrefixes(f *testing.F) {
	for _, s := range []string{"192.0.2.10,192.0.2.0/28, 198.51.100.0/24", "fd00::/64", "::ffff:10.0.0.1/120", "10.0.0.1/-1", ",,", "0.0.0.0/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parsePrefixes(s)
		for _, p := range got {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				t.Fatalf("%q: %v", s, p)
			}
		}
		if len(got) == 0 && err == nil && len(items(s)) > 0 {
			t.Fatalf("%q: items vanished without a word", s)
		}
		if again, err := parsePrefixes(join(got)); err != nil || !slices.Equal(again, got) {
			t.Fatalf("%q: %v is read back as %v, %v", s, got, again, err)
		}
	})
}

func FuzzParseDiscovered(f *testing.F) {
	for _, s := range []string{"", "{}", "null", `{"` + seedKey + `":{"IP":"203.0.113.50","Port":40001,"Zone":""}}`, `{"` + seedKey + `":null}`, `{"` + seedKey + `":{"IP":"::ffff:1.2.3.4","Port":1}}`, `{"x":{"IP":""}}`, `[]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, _ := parseDiscovered(s)
		for k, e := range got {
			wantUsable(t, e.Addr())
			if e.Port() == 0 || k.IsZero() {
				t.Fatalf("%q: %v %v", s, k, e)
			}
		}
		if again, err := parseDiscovered(formatDiscovered(got)); err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("%q: %v is read back as %v, %v", s, got, again, err)
		}
	})
}

// Whatever is stored as a Peer, it is understood whole or refused with a
// sentence that names a field and shows no secret.
func FuzzDecodePeer(f *testing.F) {
	const secret = "aPxGwq8zERHQ3Q1cOZFdJ+cvJX5Ka4mLN38AyYKYF10="
	for _, endpoint := range []string{`null`, `"home:1"`, `{"dnsOrIP":{"ip":"203.0.113.5"},"port":51820}`, `{"dns":"x","port":1}`, `17`} {
		f.Add(`{"metadata":{"name":"p"},"spec":{"allowedIPs":["10.5.0.1/32"],"publicKey":"` + seedKey + `","presharedKey":"` + secret + `","persistentKeepalive":25,"endpoint":` + endpoint + `}}`)
	}
	f.Add(`{"spec":{"allowedIPs":"x","presharedKey":["` + secret + `"]}}`)
	f.Add(`{"spec":{"presharedKey":"` + secret + `"`)
	f.Add(``)
	f.Fuzz(func(t *testing.T, text string) {
		peer, warnings := decode("p", []byte(text))
		// A secret that stands in another field is no secret any more.
		kept := !strings.Contains(strings.ReplaceAll(text, `"presharedKey":"`+secret, ""), secret[:12])
		for _, w := range warnings {
			if kept && strings.Contains(w.Message, secret[:12]) || len(w.Message) > 3000 {
				t.Fatalf("warning %q", w.Message)
			}
		}
		if len(warnings) > 0 {
			return
		}
		if peer.Key.IsZero() || len(peer.AllowedIPs) == 0 || peer.Keepalive < 0 {
			t.Fatalf("%q is accepted as %+v", text, peer)
		}
		for _, p := range peer.AllowedIPs {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				t.Fatalf("%q: prefix %v", text, p)
			}
		}
		if e := peer.Endpoint; !e.IsZero() && (e.Port == 0 || e.Host == "" && !e.Addr.IsValid()) {
			t.Fatalf("%q: endpoint %+v", text, e)
		}
	})
}

func FuzzDecodeKept(f *testing.F) {
	f.Add([]byte(`{"version":1,"node":"e1","snapshot":{"nodes":[{"name":"e1","key":"`+seedKey+`"}],"peers":[{"name":"p","key":"`+seedKey+`","allowedIPs":["10.5.0.1/32"],"presharedKey":"sha256:00"}]},"inputs":{},"presharedKeyFingerprints":{"p":"sha256:00"}}`), []byte(`{"version":1,"presharedKeys":{"p":"`+seedKey+`"}}`))
	f.Add([]byte(`{"version":1}`), []byte(``))
	f.Fuzz(func(t *testing.T, snapshot, psk []byte) {
		k, _, err := decodeKept(snapshot, psk)
		if err != nil {
			return
		}
		for _, p := range k.Snapshot.Peers {
			if want, secret := k.Fingerprints[p.Name]; secret && p.PresharedKey.String() != want {
				t.Fatalf("peer %q came without its preshared key", p.Name)
			}
		}
		if _, _, err := encode(k); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}

// However nodes and claims look, afterwards nothing belongs to two of them, and
// the order of nodes does not matter.
func FuzzResolve(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 1, 2, 3, 4, 9, 9, 9, 9, 1, 1, 1, 1})
	f.Add([]byte("the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s model.Snapshot
		var claims Claims
		for i := 0; i+5 <= len(b) && i < 60; i += 5 {
			n := model.Node{
				Name: string(rune('a' + i/5)), UID: string(rune('z' - i/5)), Spoken: b[i]&1 == 1,
				InternalIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, b[i+1] & 3}), 24)},
				PodPrefixes: sorted([]netip.Prefix{
					netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, b[i+2], 0}), 16+int(b[i+2]&15)).Masked(),
					netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, b[i+3], b[i+2]}), 16+int(b[i+3]&15)).Masked(),
				}),
			}
			if n.Spoken {
				n.Key = model.Key{b[i] >> 1 & 7, 1}
				n.WireGuardIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, b[i+4] & 7})}
			}
			s.Nodes = append(s.Nodes, n)
			claims.Observe(n, Moment(b[i+4]>>5))
		}
		got, _ := Resolve(claims, s)
		held := make(map[fact]string)
		for i := range got.Nodes {
			n := &got.Nodes[i]
			for _, fact := range facts(n) {
				if other, taken := held[fact]; taken && other != n.Name {
					t.Fatalf("%+v belongs to %s and %s", fact, other, n.Name)
				}
				held[fact] = n.Name
			}
			for j := range i {
				for _, p := range n.PodPrefixes {
					for _, q := range got.Nodes[j].PodPrefixes {
						if p.Overlaps(q) {
							t.Fatalf("%v of %s and %v of %s", p, n.Name, q, got.Nodes[j].Name)
						}
					}
				}
			}
		}
		slices.Reverse(s.Nodes)
		turned, _ := Resolve(claims, s)
		slices.Reverse(turned.Nodes)
		if !reflect.DeepEqual(got, turned) {
			t.Fatalf("the order of nodes matters:\n%+v\n%+v", got, turned)
		}
	})
}
