package cluster_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

const presharedKey = "aPxGwq8zERHQ3Q1cOZFdJ+cvJX5Ka4mLN38AyYKYF10="

// laptop is a good Peer in JSON, with fields of its spec replaced; "" as value
// takes a field out.
func laptop(replaced ...string) []byte {
	spec := map[string]json.RawMessage{
		"allowedIPs": []byte(`["10.5.0.1/32"]`),
		"publicKey":  []byte(`"` + keyA + `"`),
	}
	for _, r := range replaced {
		field, value, _ := strings.Cut(r, "=")
		if spec[field] = []byte(value); value == "" {
			delete(spec, field)
		}
	}
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": "laptop", "uid": "u1", "creationTimestamp": "2026-01-02T03:04:05Z"},
		"spec":     spec,
	})
	if err != nil {
		panic(err)
	}
	return text
}

func parsePeer(object []byte) (model.Peer, error) {
	p, err := cluster.DecodePeer(object)
	if err != nil {
		return model.Peer{}, err
	}
	return cluster.ParsePeer(p)
}

func TestPeer(t *testing.T) {
	psk, err := model.ParsePresharedKey(presharedKey)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parsePeer(laptop(
		`allowedIPs=["10.5.0.9/24","fd00:5::1/128","10.5.0.0/24"]`,
		`endpoint={"dnsOrIP":{"dns":"Home.Example.TEST."},"port":51820}`,
		`persistentKeepalive=25`, `presharedKey="`+presharedKey+`"`, `expiresAt="2027-01-31T19:00:00+01:00"`,
		`allowedDestinations=[{"prefix":"10.96.0.10"},{"namespace":"shop","service":"web"},{"prefix":"10.244.1.9/16"},{"namespace":"dev"},{"namespace":"shop","service":"web"}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := model.Peer{
		Name: "laptop", UID: "u1", Key: key(keyA), PresharedKey: psk,
		AllowedIPs: prefixes("10.5.0.0/24", "fd00:5::1/128"),
		Endpoint:   model.Endpoint{Host: "home.example.test", Port: 51820},
		Keepalive:  25 * time.Second,
		ExpiresAt:  time.Date(2027, 1, 31, 18, 0, 0, 0, time.UTC), Destinations: prefixes("10.96.0.10/32", "10.244.0.0/16"),
		Named: []model.NamedDestination{{Namespace: "dev"}, {Namespace: "shop", Service: "web"}},
		Seq:   time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano(),
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TC30: of an address and a name the address counts, as the API says.
func TestPeerEndpointPrecedence(t *testing.T) {
	got, err := parsePeer(laptop(`endpoint={"dnsOrIP":{"ip":"203.0.113.5","dns":"home.example.test"},"port":51820}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := (model.Endpoint{Addr: netip.MustParseAddr("203.0.113.5"), Port: 51820}); got.Endpoint != want {
		t.Errorf("with both an ip and a name: got %+v, want %+v", got.Endpoint, want)
	}
}

// TC30: a Peer with a bad field is none, and the field and what would be right are
// named.
func TestPeerRefused(t *testing.T) {
	for _, c := range []struct {
		field string
		says  []string
	}{
		{`allowedIPs=["10.5.0.1"]`, []string{"spec.allowedIPs", `"10.5.0.1"`, "10.5.0.1/32 is one address"}},
		{`allowedIPs=["fd00::1"]`, []string{"fd00::1/128"}},
		{`allowedIPs=["10.5.0.1/32","laptop"]`, []string{`"laptop"`, "not a prefix"}},
		{`allowedIPs=["::ffff:10.5.0.1/128"]`, []string{"not a prefix"}},
		{`allowedIPs=[]`, []string{"at least one prefix"}},
		{`allowedIPs=`, []string{"at least one prefix"}},
		{`allowedIPs="10.5.0.1/32"`, []string{"spec.allowedIPs", "want a list", "found string"}},
		{`allowedIPs=[7]`, []string{"spec.allowedIPs", "want a string"}},
		{`publicKey="short"`, []string{"spec.publicKey", "got 5 characters"}},
		{`publicKey=`, []string{"spec.publicKey"}},
		{`publicKey="AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="`, []string{"all zeros"}},
		{`presharedKey="not-base64"`, []string{"spec.presharedKey", "44 characters"}},
		{`presharedKey=17`, []string{"spec.presharedKey", "found number"}},
		{`persistentKeepalive=-1`, []string{"spec.persistentKeepalive", "0 to 65535"}},
		{`persistentKeepalive=70000`, []string{"0 to 65535"}},
		{`persistentKeepalive="25"`, []string{"spec.persistentKeepalive", "want a whole number"}},
		{`endpoint={"port":51820}`, []string{"spec.endpoint", "ip or a dns name"}},
		{`endpoint={"dnsOrIP":{"ip":"203.0.113.5"}}`, []string{"spec.endpoint", "port"}},
		{`endpoint={"dnsOrIP":{"ip":"203.0.113.5"},"port":65536}`, []string{"65536"}},
		{`endpoint={"dnsOrIP":{"ip":"home"},"port":1}`, []string{`"home"`, "not an IP address"}},
		{`endpoint={"dnsOrIP":{"ip":"203.0.113.5","dns":"a_b"},"port":1}`, []string{`"a_b"`, "DNS name"}},
		{`endpoint="203.0.113.5"`, []string{"spec.endpoint", "host:port"}},
		{`endpoint=17`, []string{"spec.endpoint"}},
		{`expiresAt="tomorrow"`, []string{"spec.expiresAt", "2027-01-31T18:00:00Z"}},
		{`allowedDestinations=[]`, []string{"spec.allowedDestinations", "at least one"}},
		{`allowedDestinations=[{"prefix":"web"}]`, []string{"spec.allowedDestinations", `"web"`}},
		{`allowedDestinations=[{"service":"web"}]`, []string{"spec.allowedDestinations", `"web"`, "say which"}},
		{`allowedDestinations=[{"namespace":"shop","prefix":"10.96.0.10"}]`, []string{"spec.allowedDestinations", "not both"}},
		{`allowedDestinations=[{"namespace":"Shop/x"}]`, []string{"spec.allowedDestinations", `"Shop/x"`}},
		{`allowedDestinations=[{}]`, []string{"spec.allowedDestinations"}},
		{`defaultRoute="yes"`, []string{"spec.defaultRoute", "want a bool"}},
	} {
		t.Run(c.field, func(t *testing.T) {
			got, err := parsePeer(laptop(c.field))
			if err == nil {
				t.Fatalf("it is accepted: %+v", got)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q: %v", part, err)
				}
			}
		})
	}
}

// A Secret's entry is named after the Peer, in the Secret that agents may read.
func TestPeerWithItsKeyInASecret(t *testing.T) {
	for field, want := range map[string]model.SecretEntry{
		`presharedKeySecretRef={}`:                           {Secret: "kilo-preshared-keys", Entry: "laptop"},
		`presharedKeySecretRef={"name":"vpn","key":"psk-1"}`: {Secret: "vpn", Entry: "psk-1"},
	} {
		got, err := parsePeer(laptop(field))
		if err != nil || got.PresharedKeyFrom != want || !got.PresharedKey.IsZero() {
			t.Errorf("%s: %+v, %v", field, got, err)
		}
	}
	if _, err := parsePeer(laptop(`presharedKeySecretRef={}`, `presharedKey="`+presharedKey+`"`)); err == nil {
		t.Error("a key here and one in a Secret: which?")
	}
}

// A limit that a default route would get around is none.
func TestDefaultRouteCannotBeLimited(t *testing.T) {
	_, err := parsePeer(laptop(`defaultRoute=true`, `allowedIPs=["0.0.0.0/0"]`, `allowedDestinations=[{"prefix":"10.96.0.10"}]`))
	if err == nil || !strings.Contains(err.Error(), "spec.allowedDestinations") {
		t.Errorf("got %v", err)
	}
}

func TestPeerErrorsKeepSecrets(t *testing.T) {
	almost := presharedKey[:43]
	for _, object := range [][]byte{
		laptop(`presharedKey="` + almost + `"`),
		laptop(`publicKey="` + almost + `"`), // the wrong key pasted
		laptop(`presharedKey=["` + presharedKey + `"]`),
		[]byte(`{"spec":{"presharedKey":"` + presharedKey + `"`),
	} {
		_, err := parsePeer(object)
		if err == nil {
			t.Errorf("%s is accepted", object)
		} else if strings.Contains(err.Error(), almost[:10]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func TestSeqIsTheAgeOfAPeer(t *testing.T) {
	at := func(s int64) int64 {
		p, err := cluster.ParsePeer(api.Peer{
			ObjectMeta: metav1.ObjectMeta{Name: "p", CreationTimestamp: metav1.Unix(s, 0)},
			Spec:       api.PeerSpec{AllowedIPs: []string{"10.5.0.1/32"}, PublicKey: keyA},
		})
		if err != nil {
			t.Fatal(err)
		}
		return p.Seq
	}
	if at(100) >= at(101) {
		t.Errorf("an older Peer has Seq %d, a younger one %d", at(100), at(101))
	}
}
