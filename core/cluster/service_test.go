package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/model"
)

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// What a person says goes over what the API server tells, and that over what it
// told the process before.
func TestWhoseWordOnServices(t *testing.T) {
	ranges := func(c *Cluster) string {
		s, _, _ := c.Snapshot()
		var out []string
		for _, p := range s.ServicePrefixes {
			out = append(out, p.String())
		}
		return strings.Join(out, " ")
	}
	c := New(Config{})
	if got := ranges(c); got != "" {
		t.Errorf("nobody said anything, and yet: %s", got)
	}
	c.kept.Snapshot.ServicePrefixes = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}
	c.touch()
	if got := ranges(c); got != "10.43.0.0/16" {
		t.Errorf("from disk: %s", got)
	}
	c.serviceChanged(serviceCIDR("kubernetes", "10.96.0.0/12", "fd00:96::/112"), true)
	c.serviceChanged(serviceCIDR("more", "10.90.0.0/24", "no prefix", "10.96.0.0/12"), false)
	if got := ranges(c); got != "10.90.0.0/24 10.96.0.0/12 fd00:96::/112" {
		t.Errorf("from the API server: %s", got)
	}
	c.serviceDeleted(serviceCIDR("more"))
	if got := ranges(c); got != "10.96.0.0/12 fd00:96::/112" {
		t.Errorf("one less: %s", got)
	}
	c.config.ServicePrefixes = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}
	c.touch()
	if got := ranges(c); got != "10.43.0.0/16" {
		t.Errorf("as configured: %s", got)
	}
}

// --subnet and --service-cidr are compared where they are read; a range that
// the API server tells can only be compared later.
func TestSubnetInsideServices(t *testing.T) {
	c := New(Config{Node: "e1", WireGuardSubnets: []netip.Prefix{netip.MustParsePrefix("10.96.4.0/24")}})
	complains := func() bool {
		_, w, _ := c.Snapshot()
		return slices.ContainsFunc(w, func(w model.Warning) bool {
			return w.Kind == SubnetOfServices && w.Object == "node/e1" && strings.Contains(w.Message, "10.96.4.0/24") && strings.Contains(w.Message, "10.96.0.0/12")
		})
	}
	if complains() {
		t.Error("no range is known yet")
	}
	c.serviceChanged(serviceCIDR("kubernetes", "10.96.0.0/12"), true)
	if !complains() {
		t.Error("nobody says that WireGuard addresses are Services'")
	}
}
