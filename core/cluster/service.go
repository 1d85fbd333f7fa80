package cluster

import (
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/kilo-overlay/kilo/core/model"
)

// SubnetOfServices is the kind of warning about WireGuard addresses that are
// taken from a range of Services.
const SubnetOfServices = "SubnetOfServices"

// serviceSource watches the ranges of Service addresses, which API servers tell
// from Kubernetes 1.33 on. Nothing waits for it: a mesh that does not know them
// works, and only misses a Peer that would take some of them.
func serviceSource(c *clients) *source {
	lw := cache.NewListWatchFromClient(c.networking, "servicecidrs", metav1.NamespaceAll, fields.Everything())
	return &source{
		name: "servicecidrs.networking.k8s.io",
		needs: "without them it is not noticed when a Peer takes Service addresses: apply manifests/rbac.yaml, " +
			"or say the ranges with --service-cidr (before Kubernetes 1.33 that is the only way)",
		absent:    true,
		forbidden: true,
		optional:  true,
		example:   &networkingv1.ServiceCIDR{},
		list:      lw.ListWithContextFunc,
		watch:     lw.WatchFuncWithContext,
		slim: func(object any) (any, error) {
			if s, ok := object.(*networkingv1.ServiceCIDR); ok {
				s.ManagedFields = nil
			}
			return object, nil
		},
	}
}

// servicePrefixes are the ranges in one object. The API server has checked
// them; what is no prefix all the same is nobody's range.
func servicePrefixes(s *networkingv1.ServiceCIDR) (out []netip.Prefix) {
	for _, text := range s.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// servicesKnown returns the ranges of Services: as configured, else as the API
// server tells, else as it told an earlier process.
func (c *Cluster) servicesKnown() []netip.Prefix {
	switch {
	case len(c.config.ServicePrefixes) > 0:
		return c.config.ServicePrefixes
	case len(c.services) > 0:
		var all []netip.Prefix
		for _, prefixes := range c.services {
			all = append(all, prefixes...)
		}
		return sorted(all)
	}
	return c.kept.Snapshot.ServicePrefixes
}

// subnetWarnings tell of WireGuard subnets that overlap a range of Services:
// kube-proxy would take such an address for a Service's.
func subnetWarnings(object string, s *model.Snapshot) (warnings []model.Warning) {
	for _, subnet := range s.WireGuardSubnets {
		for _, services := range s.ServicePrefixes {
			if subnet.Overlaps(services) {
				warnings = append(warnings, model.Warning{Kind: SubnetOfServices, Object: object, Message: fmt.Sprintf(
					"WireGuard addresses are taken from %s (--subnet), which overlaps %s, a range of Services; give --subnet a prefix of its own, on all nodes", subnet, services)})
			}
		}
	}
	return warnings
}

func (c *Cluster) serviceChanged(object any, _ bool) {
	s, ok := object.(*networkingv1.ServiceCIDR)
	if !ok {
		return
	}
	c.mu.Lock()
	c.services[s.Name] = servicePrefixes(s)
	c.mu.Unlock()
	c.touch()
}

func (c *Cluster) serviceDeleted(object any) {
	s, ok := object.(*networkingv1.ServiceCIDR)
	if !ok {
		return
	}
	c.mu.Lock()
	delete(c.services, s.Name)
	c.mu.Unlock()
	c.touch()
}
