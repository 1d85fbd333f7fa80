package cilium

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/cilium/api/v1/models"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ciliumNodes is where Cilium keeps what it gave each node.
var ciliumNodes = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}

// patience is how long an API server may take to answer before what was known
// stands in for its answer.
const patience = 3 * time.Second

// node is what counts of a CiliumNode.
type node struct {
	prefixes  []netip.Prefix // sorted
	addresses []netip.Addr   // internal ones of the node
	// bad are entries that are no prefixes.
	bad []string
}

// ownNode returns what this node's CiliumNode says. While no API server answers,
// what the node published before stands in for it, or else the one range that the
// agent names.
func (a *Adapter) ownNode(ctx context.Context, said *answers) (node, error) {
	a.mu.Lock()
	seen := a.node
	a.mu.Unlock()
	if seen != nil {
		return parseNode(seen)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	object, err := a.o.Nodes.Resource(ciliumNodes).Get(ctx, a.o.Node, metav1.GetOptions{})
	switch {
	case err == nil:
		return parseNode(object)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return node{}, fmt.Errorf("the API server does not let the agent read CiliumNodes: bring its ClusterRole up to date (manifests/rbac.yaml): %w", err)
	case apierrors.IsNotFound(err):
		return node{}, fmt.Errorf("there is no CiliumNode %q yet: Cilium makes it when its agent joins the cluster", a.o.Node)
	}
	known := node{}
	if a.o.Known != nil {
		known.prefixes = a.o.Known()
	}
	if len(known.prefixes) == 0 {
		known.prefixes = said.allocRanges()
	}
	if len(known.prefixes) == 0 && !said.tunnels() {
		return node{}, fmt.Errorf("CiliumNode %q: %w", a.o.Node, err)
	}
	return known, nil
}

// parseNode reads a CiliumNode: the pod prefixes of IPAM mode kubernetes and
// cluster-pool, of which there may be several, and those of each pool of
// multi-pool.
func parseNode(o *unstructured.Unstructured) (node, error) {
	var n node
	add := func(cidrs []string) {
		for _, c := range cidrs {
			p, err := netip.ParsePrefix(c)
			if err != nil {
				n.bad = append(n.bad, c)
				continue
			}
			n.prefixes = append(n.prefixes, p.Masked())
		}
	}
	cidrs, _, err := unstructured.NestedStringSlice(o.Object, "spec", "ipam", "podCIDRs")
	if err != nil {
		return n, fmt.Errorf("CiliumNode %q: %w", o.GetName(), err)
	}
	add(cidrs)
	pools, _, err := unstructured.NestedSlice(o.Object, "spec", "ipam", "pools", "allocated")
	if err != nil {
		return n, fmt.Errorf("CiliumNode %q: %w", o.GetName(), err)
	}
	for _, pool := range pools {
		if m, ok := pool.(map[string]any); ok {
			cidrs, _, _ := unstructured.NestedStringSlice(m, "cidrs")
			add(cidrs)
		}
	}
	addresses, _, _ := unstructured.NestedSlice(o.Object, "spec", "addresses")
	for _, entry := range addresses {
		if m, ok := entry.(map[string]any); ok && m["type"] == "InternalIP" {
			text, _ := m["ip"].(string)
			if a, err := netip.ParseAddr(text); err == nil {
				n.addresses = append(n.addresses, a)
			}
		}
	}
	slices.SortFunc(n.prefixes, netip.Prefix.Compare)
	n.prefixes = slices.Compact(n.prefixes)
	if len(n.prefixes) == 0 {
		return n, errors.New("CiliumNode " + o.GetName() + " has none yet: Cilium's operator gives them")
	}
	return n, nil
}

// allocRanges is what the agent itself says: the first prefix of each family.
func (s *answers) allocRanges() []netip.Prefix {
	var out []netip.Prefix
	if s.config.Addressing == nil {
		return nil
	}
	for _, e := range []*models.NodeAddressingElement{s.config.Addressing.IPv4, s.config.Addressing.IPv6} {
		if e == nil {
			continue
		}
		if p, err := netip.ParsePrefix(e.AllocRange); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
