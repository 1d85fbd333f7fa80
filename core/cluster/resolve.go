package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

// The kinds of warnings about two nodes that claim one thing.
const (
	DuplicateKey         = "DuplicateKey"
	DuplicateWireGuardIP = "DuplicateWireGuardIP"
	DuplicateInternalIP  = "DuplicateInternalIP"
	OverlappingPodPrefix = "OverlappingPodPrefix"
)

// Resolve decides between nodes that claim the same thing, which only one can
// have: a key, a WireGuard address, an internal address, pod addresses. The
// claim of a node whose agent has spoken goes before one that was only read
// from a Node object; then the claim that this process saw first; then the
// lower UID. The loser keeps everything else. Without its key a node counts as
// one whose agent has not spoken.
//
// It is pure and leaves s as it is. The warnings are about the losers.
func Resolve(claims Claims, s model.Snapshot) (model.Snapshot, []model.Warning) {
	r := resolver{claims: claims, nodes: slices.Clone(s.Nodes)}
	r.keys()
	r.addresses()
	r.podPrefixes()
	s.Nodes = r.nodes
	return s, r.warnings
}

type resolver struct {
	claims   Claims
	nodes    []model.Node
	warnings []model.Warning
}

// before orders the claims of nodes i and j to what fi and fj name.
func (r *resolver) before(i int, fi fact, j int, fj fact) int {
	a, b := &r.nodes[i], &r.nodes[j]
	if a.Spoken != b.Spoken {
		if a.Spoken {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(r.claims.since(a.UID, fi), r.claims.since(b.UID, fj)),
		cmp.Compare(a.UID, b.UID),
		cmp.Compare(a.Name, b.Name),
	)
}

// warn tells of node loser. A node that nobody has heard of yet is not worth
// an alarm while it is only guessed at.
func (r *resolver) warn(kind string, winner, loser int, format string, args ...any) {
	if r.nodes[winner].Spoken && !r.nodes[loser].Spoken && kind != DuplicateKey {
		return
	}
	r.warnings = append(r.warnings, model.Warning{
		Kind: kind, Object: "node/" + r.nodes[loser].Name, Message: fmt.Sprintf(format, args...),
		Note: kind == DuplicateWireGuardIP, // the loser's agent mends it
	})
}

// unique finds what several nodes claim and calls lose for each that must do
// without. claims hands over what a node claims of the kind; as says what kind
// that is.
func unique[K comparable](r *resolver, claims func(n *model.Node, claim func(K)), as func(K) fact, lose func(k K, winner, loser int)) {
	holders := make(map[K]int, len(r.nodes))
	contested := make(map[K][]int)
	var order []K
	i := 0
	claim := func(k K) {
		first, taken := holders[k]
		switch {
		case !taken:
			holders[k] = i
		case contested[k] == nil:
			contested[k] = []int{first, i}
			order = append(order, k)
		default:
			contested[k] = append(contested[k], i)
		}
	}
	for i = range r.nodes {
		claims(&r.nodes[i], claim)
	}
	for _, k := range order {
		claimants := contested[k]
		slices.SortFunc(claimants, func(i, j int) int { return r.before(i, as(k), j, as(k)) })
		for _, loser := range claimants[1:] {
			lose(k, claimants[0], loser)
		}
	}
}

func (r *resolver) keys() {
	unique(r,
		func(n *model.Node, claim func(model.Key)) {
			if !n.Key.IsZero() {
				claim(n.Key)
			}
		},
		func(k model.Key) fact { return fact{key: k} },
		func(k model.Key, winner, loser int) {
			r.warn(DuplicateKey, winner, loser, "its public key %s is that of node %s, which keeps it; this node is out of the mesh. Was its disk copied? Delete /var/lib/kilo/key on this node and restart its agent", k, r.nodes[winner].Name)
			r.nodes[loser].Key, r.nodes[loser].Spoken = model.Key{}, false
		})
}

func (r *resolver) addresses() {
	unique(r,
		func(n *model.Node, claim func(netip.Addr)) {
			for _, a := range n.WireGuardIPs {
				claim(a)
			}
		},
		func(a netip.Addr) fact { return fact{wireGuard: a} },
		func(a netip.Addr, winner, loser int) {
			r.warn(DuplicateWireGuardIP, winner, loser, "its WireGuard address %s is that of node %s, which had it first; this node's agent takes another", a, r.nodes[winner].Name)
			n := &r.nodes[loser]
			n.WireGuardIPs = without(n.WireGuardIPs, func(b netip.Addr) bool { return b == a })
		})
	unique(r,
		func(n *model.Node, claim func(netip.Addr)) {
			for _, p := range n.InternalIPs {
				claim(p.Addr())
			}
		},
		func(a netip.Addr) fact { return fact{internal: a} },
		func(a netip.Addr, winner, loser int) {
			r.warn(DuplicateInternalIP, winner, loser, "its internal address %s is that of node %s too, which keeps it; other locations do not reach this node's own address. Give one of them another address, or say kilo.squat.ai/force-internal-ip=- on one", a, r.nodes[winner].Name)
			n := &r.nodes[loser]
			n.InternalIPs = without(n.InternalIPs, func(p netip.Prefix) bool { return p.Addr() == a })
		})
}

// podClaim is one pod prefix of one node.
type podClaim struct {
	prefix netip.Prefix
	node   int
}

// podPrefixes settles overlaps, of which equality is one kind. In the order of
// address and length everything inside a prefix follows it directly.
func (r *resolver) podPrefixes() {
	all := make([]podClaim, 0, len(r.nodes))
	for i := range r.nodes {
		for _, p := range r.nodes[i].PodPrefixes {
			all = append(all, podClaim{p, i})
		}
	}
	slices.SortFunc(all, func(a, b podClaim) int {
		return cmp.Or(a.prefix.Compare(b.prefix), cmp.Compare(a.node, b.node))
	})
	for len(all) > 0 {
		group := 1
		several := false
		for group < len(all) && all[0].prefix.Overlaps(all[group].prefix) {
			several = several || all[group].node != all[0].node
			group++
		}
		if several {
			r.settle(all[:group])
		}
		all = all[group:]
	}
}

// settle takes the claims of one group in order and refuses those that overlap
// one already accepted.
func (r *resolver) settle(group []podClaim) {
	slices.SortFunc(group, func(a, b podClaim) int {
		return cmp.Or(
			r.before(a.node, fact{pods: a.prefix}, b.node, fact{pods: b.prefix}),
			a.prefix.Compare(b.prefix))
	})
	var accepted []podClaim
	for _, c := range group {
		i := slices.IndexFunc(accepted, func(a podClaim) bool { return a.node != c.node && a.prefix.Overlaps(c.prefix) })
		if i < 0 {
			accepted = append(accepted, c)
			continue
		}
		a := accepted[i]
		r.warn(OverlappingPodPrefix, a.node, c.node, "its pod prefix %s overlaps %s of node %s, which had it first; other locations do not reach this node's pods there. Two nodes with the same pod addresses are a fault of the host CNI's address management", c.prefix, a.prefix, r.nodes[a.node].Name)
		n := &r.nodes[c.node]
		n.PodPrefixes = without(n.PodPrefixes, func(p netip.Prefix) bool { return p == c.prefix })
	}
}

// without returns list less what drop names, leaving list itself alone.
func without[T any](list []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), drop)
}
