package cilium

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/cilium/api/v1/models"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Whatever a CiliumNode holds, what is read of it are prefixes in order, each once,
// or an error.
func FuzzParseNode(f *testing.F) {
	for _, seed := range []string{
		`{"spec":{"ipam":{"podCIDRs":["10.1.3.0/24","10.1.4.7/24","x"]},"addresses":[{"type":"InternalIP","ip":"10.0.0.1"},{"type":"InternalIP","ip":7},null]}}`,
		`{"spec":{"ipam":{"pools":{"allocated":[{"pool":"default","cidrs":["10.1.3.0/24","10.1.3.0/24"]},{"cidrs":"10.1.4.0/24"},3]}}}}`,
		`{"spec":{"ipam":{"podCIDRs":"10.1.3.0/24"}}}`,
		`{"spec":7}`,
		`{"metadata":{"name":["x"]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var o unstructured.Unstructured
		if json.Unmarshal(text, &o.Object) != nil || o.Object == nil {
			return
		}
		n, err := parseNode(&o)
		if err != nil {
			return
		}
		for i, p := range n.prefixes {
			if !p.IsValid() || p != p.Masked() || i > 0 && n.prefixes[i-1].Compare(p) >= 0 {
				t.Fatalf("prefixes %v", n.prefixes)
			}
		}
		if slices.ContainsFunc(n.addresses, func(a netip.Addr) bool { return !a.IsValid() }) {
			t.Fatalf("addresses %v", n.addresses)
		}
	})
}

// Whatever Cilium's agent says of itself, it is served, or refused by name.
func FuzzAnswers(f *testing.F) {
	for _, dir := range []string{"native", "native-bpf", "native-overlay", "tunnel"} {
		health, err := os.ReadFile(filepath.Join("testdata", dir, "healthz.json"))
		if err != nil {
			f.Fatal(err)
		}
		config, err := os.ReadFile(filepath.Join("testdata", dir, "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(health, config)
	}
	f.Add([]byte(`{}`), []byte(`{}`))
	f.Add([]byte(`{"routing":{"inter-host-routing-mode":"Tunnel"},"masquerading":{},"encryption":{}}`), []byte(`{"status":{"ipamMode":"kubernetes","addressing":{"ipv4":null}}}`))
	f.Fuzz(func(t *testing.T, health, config []byte) {
		var said models.DaemonConfiguration
		s := answers{health: &models.StatusResponse{}}
		if json.Unmarshal(health, s.health) != nil || json.Unmarshal(config, &said) != nil || said.Status == nil {
			return
		}
		s.config = said.Status
		if err := s.servable(); err != nil {
			if err.Error() == "" {
				t.Fatal("refused without a word")
			}
			return
		}
		facts := s.facts(node{prefixes: s.allocRanges()})
		for _, p := range slices.Concat(facts.PodPrefixes, facts.ClusterPrefixes) {
			if p != p.Masked() {
				t.Fatalf("prefix %s", p)
			}
		}
		for _, w := range s.warnings(&Options{Node: "e1", Interface: "kilo0"}, node{}) {
			if w.Kind == "" || w.Message == "" {
				t.Fatalf("warning %+v", w)
			}
		}
	})
}
