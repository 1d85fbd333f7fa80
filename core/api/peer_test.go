package api_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/api"
)

func TestEndpointForms(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     api.PeerEndpoint
	}{
		{"as Kilo stores it", `{"dnsOrIP":{"ip":"203.0.113.5"},"port":51820}`, api.PeerEndpoint{IP: "203.0.113.5", Port: 51820}},
		{"as Kilo stores a name", `{"dnsOrIP":{"dns":"dyn.example.test"},"port":51820}`, api.PeerEndpoint{DNS: "dyn.example.test", Port: 51820}},
		{"as Kilo stored it before it knew names", `{"ip":"203.0.113.5","port":51820}`, api.PeerEndpoint{IP: "203.0.113.5", Port: 51820}},
		{"name without the inner object", `{"dns":"dyn.example.test","port":1}`, api.PeerEndpoint{DNS: "dyn.example.test", Port: 1}},
		{"both", `{"dnsOrIP":{"ip":"203.0.113.5","dns":"dyn.example.test"},"port":51820}`, api.PeerEndpoint{IP: "203.0.113.5", DNS: "dyn.example.test", Port: 51820}},
		{"port only", `{"port":51820}`, api.PeerEndpoint{Port: 51820}},
		{"text, name", `"dr-gateway.example.com:51820"`, api.PeerEndpoint{DNS: "dr-gateway.example.com", Port: 51820}},
		{"text, IPv4", `"203.0.113.5:51820"`, api.PeerEndpoint{IP: "203.0.113.5", Port: 51820}},
		{"text, IPv6", `"[2001:db8::5]:51820"`, api.PeerEndpoint{IP: "2001:db8::5", Port: 51820}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got api.PeerEndpoint
			if err := json.Unmarshal([]byte(c.in), &got); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("%s: got %+v, want %+v", c.in, got, c.want)
			}
		})
	}
}

func TestEndpointRefused(t *testing.T) {
	for _, in := range []string{`"203.0.113.5"`, `"2001:db8::5:51820"`, `"home:"`, `"home:https"`, `17`, `["a"]`, `{"port":"51820"}`, `{"dnsOrIP":"203.0.113.5","port":1}`} {
		var got api.PeerEndpoint
		err := json.Unmarshal([]byte(in), &got)
		if err == nil {
			t.Errorf("%s: want an error, got %+v", in, got)
		} else if !strings.Contains(err.Error(), "spec.endpoint") {
			t.Errorf("%s: error %q does not name the field", in, err)
		}
	}
}

// What we write, Kilo reads.
func TestPeerIsWrittenInKilosForm(t *testing.T) {
	p := api.PeerSpec{
		AllowedIPs:          []string{"10.5.0.1/32"},
		Endpoint:            &api.PeerEndpoint{DNS: "dyn.example.test", Port: 51820},
		PersistentKeepalive: 10,
		PublicKey:           "GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg=",
	}
	got, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"allowedIPs":["10.5.0.1/32"],"endpoint":{"dnsOrIP":{"dns":"dyn.example.test"},"port":51820},"persistentKeepalive":10,"publicKey":"GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg="}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	const secret = "aPxGwq8zERHQ3Q1cOZFdJ+cvJX5Ka4mLN38AyYKYF10="
	spec := api.PeerSpec{PresharedKey: secret}
	var log strings.Builder
	for _, handler := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(handler).Info("peer", "psk", spec.PresharedKey, "spec", spec, "peer", api.Peer{Spec: spec})
	}
	printed := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		printed += fmt.Sprintf(verb, spec) + fmt.Sprintf(verb, spec.PresharedKey)
	}
	for _, leak := range []string{secret, secret[:10], fmt.Sprintf("%x", secret[:10]), fmt.Sprintf("%X", secret[:10])} {
		if strings.Contains(printed, leak) {
			t.Errorf("the secret is printed as %q in %s", leak, printed)
		}
	}
	if text, _ := json.Marshal(spec); !strings.Contains(string(text), secret) {
		t.Errorf("JSON for the API server lacks the key: %s", text)
	}
}

// Any JSON is read as an endpoint or refused, and what was read is written in
// a form that reads the same.
func FuzzEndpoint(f *testing.F) {
	for _, s := range []string{`"home:1"`, `"[2001:db8::5]:51820"`, `{"dnsOrIP":{"ip":"203.0.113.5","dns":"x"},"port":51820}`, `{"ip":"203.0.113.5","port":1}`, `null`, `17`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, again api.PeerEndpoint
		if json.Unmarshal(b, &got) != nil {
			return
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &again); err != nil || again != got {
			t.Fatalf("%s is read as %+v, written %s, read as %+v (%v)", b, got, text, again, err)
		}
	})
}
