package cilium

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

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
