// Package link decides how two clusters become Peers of each other: which prefixes
// of one go to the other, as one Peer for each location, and whether any are claimed
// on both sides. It is pure; kgctl cluster link does what it says.
//
// Start with Peers and Conflicts.
package link

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/render"
)

// What is a kind of prefix that one cluster lets another reach.
type What string

// The kinds that can be shared.
const (
	Pods      What = "pods"
	Nodes     What = "nodes"
	Services  What = "services"
	WireGuard What = "wireguard"
	// Extra is what nodes have as allowed-location-ips.
	Extra What = "allowed-location-ips"
)

// All lists the kinds in the order in which people think of them.
func All() []What { return []What{Pods, Nodes, Services, WireGuard, Extra} }

// Cluster is one of the two.
type Cluster struct {
	// Name is what the other one calls it.
	Name string
	// Snapshot is the cluster without the Peers that an earlier link made, the
	// names of endpoints looked up where that is possible.
	Snapshot model.Snapshot
}

// Peer is a location of a cluster as the other one stores it.
type Peer struct {
	Location string
	// Peer.Name is the gateway's. Gateway is false where nobody serves the
	// location now: then nothing else is known of it.
	Gateway bool
	render.Peer
}

// Peers returns the locations of a cluster as Peers for the other one, sorted by
// location: of what a location carries the shared kinds, without the address of its
// endpoint. The Services' prefixes go to the location named services, if that has
// an endpoint, else to the first that has one. A location of which nothing is
// shared is left out.
func Peers(c Cluster, share []What, keepalive time.Duration, services string) []Peer {
	peers := render.LocationPeers(c.Snapshot)
	var out []Peer
	for _, l := range plan.Locations(c.Snapshot) {
		p, ok := peers[l.Name]
		if !ok {
			out = append(out, Peer{Location: l.Name})
			continue
		}
		p.AllowedIPs = slices.DeleteFunc(p.AllowedIPs, func(prefix netip.Prefix) bool {
			return !slices.Contains(share, kindOf(&c.Snapshot, prefix))
		})
		p.Keepalive = keepalive
		if len(p.AllowedIPs) > 0 {
			out = append(out, Peer{Location: l.Name, Gateway: true, Peer: p})
		}
	}
	if !slices.Contains(share, Services) || len(c.Snapshot.ServicePrefixes) == 0 {
		return out
	}
	if at := serving(out, services); at >= 0 {
		p := &out[at].AllowedIPs
		*p = append(*p, c.Snapshot.ServicePrefixes...)
		slices.SortFunc(*p, netip.Prefix.Compare)
		*p = slices.Compact(*p)
	}
	return out
}

// serving is the location whose gateway translates Services for the other cluster.
func serving(peers []Peer, preferred string) int {
	spoken := func(p Peer) bool { return p.Gateway && !p.Endpoint.IsZero() }
	if i := slices.IndexFunc(peers, func(p Peer) bool { return spoken(p) && p.Location == preferred }); i >= 0 {
		return i
	}
	if i := slices.IndexFunc(peers, spoken); i >= 0 {
		return i
	}
	return slices.IndexFunc(peers, func(p Peer) bool { return p.Gateway })
}

// kindOf tells what a prefix that a location carries is.
func kindOf(s *model.Snapshot, p netip.Prefix) What {
	inside := func(own netip.Prefix) bool { return own.Bits() <= p.Bits() && own.Overlaps(p) }
	for i := range s.Nodes {
		n := &s.Nodes[i]
		switch {
		case p.IsSingleIP() && slices.Contains(n.WireGuardIPs, p.Addr()):
			return WireGuard
		case p.IsSingleIP() && slices.ContainsFunc(n.InternalIPs, func(own netip.Prefix) bool { return own.Addr() == p.Addr() }):
			return Nodes
		case slices.ContainsFunc(n.PodPrefixes, inside):
			return Pods
		}
	}
	return Extra
}

// Mute returns the pairs of locations, one of each cluster, that cannot begin to
// speak with each other, since neither has an endpoint.
func Mute(a, b []Peer) (pairs [][2]string) {
	for _, p := range a {
		for _, q := range b {
			if p.Gateway && q.Gateway && p.Endpoint.IsZero() && q.Endpoint.IsZero() {
				pairs = append(pairs, [2]string{p.Location, q.Location})
			}
		}
	}
	return pairs
}

// Conflicts names what both clusters claim of the addresses that at least one lets
// the other reach, one sentence for each pair of kinds; none: they can be linked.
func Conflicts(a, b Cluster, share []What) []string {
	var found []string
	mine, theirs := claims(&a.Snapshot), claims(&b.Snapshot)
	for _, x := range mine {
		for _, y := range theirs {
			if !slices.Contains(share, x.shared) && !slices.Contains(share, y.shared) {
				continue
			}
			if pairs := overlaps(x.prefixes, y.prefixes); len(pairs) > 0 {
				found = append(found, sentence(a.Name, b.Name, x, y, pairs, share))
			}
		}
	}
	return found
}

// claim is everything of one kind that is a cluster's own.
type claim struct {
	words  string
	shared What // "": never
	what   []string
	// prefixes and what, whose each is ("" for the cluster's), go together.
	prefixes []netip.Prefix
}

func (c *claim) add(p netip.Prefix, whose string) {
	c.prefixes, c.what = append(c.prefixes, p.Masked()), append(c.what, whose)
}

func claims(s *model.Snapshot) []claim {
	pods, nodes, networks := claim{words: "pods", shared: Pods}, claim{words: "nodes", shared: Nodes}, claim{words: "networks of nodes"}
	services, wireguard := claim{words: "Services", shared: Services}, claim{words: "WireGuard addresses", shared: WireGuard}
	extra, peers := claim{words: "allowed-location-ips", shared: Extra}, claim{words: "Peers"}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, p := range n.PodPrefixes {
			pods.add(p, "node "+n.Name)
		}
		for _, p := range n.InternalIPs {
			nodes.add(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), "node "+n.Name)
			if !p.IsSingleIP() && !slices.Contains(networks.prefixes, p.Masked()) {
				networks.add(p, "node "+n.Name)
			}
		}
		for _, p := range n.AllowedLocationIPs {
			extra.add(p, "node "+n.Name)
		}
	}
	for _, p := range s.ServicePrefixes {
		services.add(p, "")
	}
	for _, p := range s.WireGuardSubnets {
		wireguard.add(p, "")
	}
	for i := range s.Peers {
		for _, p := range s.Peers[i].AllowedIPs {
			if p.Bits() > 0 { // a default route gives way to everything
				peers.add(p, "Peer "+s.Peers[i].Name)
			}
		}
	}
	return []claim{pods, nodes, services, wireguard, extra, networks, peers}
}

// overlaps lists pairs of indexes.
func overlaps(a, b []netip.Prefix) (pairs [][2]int) {
	for i, p := range a {
		for j, q := range b {
			if p.Overlaps(q) {
				pairs = append(pairs, [2]int{i, j})
			}
		}
	}
	return pairs
}

func sentence(a, b string, x, y claim, pairs [][2]int, share []What) string {
	one := func(c claim, i int) string {
		if c.what[i] == "" {
			return c.prefixes[i].String()
		}
		return fmt.Sprintf("%s (%s)", c.prefixes[i], c.what[i])
	}
	first := pairs[0]
	text := fmt.Sprintf("%s of %s and %s of %s overlap: %s and %s", x.words, a, y.words, b, one(x, first[0]), one(y, first[1]))
	if more := len(pairs) - 1; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text + "; " + remedy(x, y, share)
}

// remedy says how the two get apart: by other addresses, or by sharing less.
func remedy(x, y claim, share []What) string {
	apart := "one of the clusters needs other ones"
	if x.shared == WireGuard || y.shared == WireGuard {
		apart = "give the agents of one cluster another --subnet"
	}
	var rest []string
	for _, w := range share {
		if w != x.shared && w != y.shared {
			rest = append(rest, string(w))
		}
	}
	if x.shared == Pods || y.shared == Pods || len(rest) == 0 {
		return apart
	}
	return fmt.Sprintf("%s, or leave them out: --share %s", apart, strings.Join(rest, ","))
}

// ParseWhat reads a list of kinds.
func ParseWhat(words []string) ([]What, error) {
	var out []What
	for _, word := range words {
		w := What(strings.TrimSpace(word))
		if !slices.Contains(All(), w) {
			return nil, fmt.Errorf("%q is nothing that a cluster has: possible values are %s", word, join(All()))
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b What) int { return cmp.Compare(slices.Index(All(), a), slices.Index(All(), b)) })
	if out = slices.Compact(out); len(out) == 0 {
		return nil, fmt.Errorf("nothing is shared: possible values are %s", join(All()))
	}
	return out, nil
}

func join(list []What) string {
	var words []string
	for _, w := range list {
		words = append(words, string(w))
	}
	return strings.Join(words, ", ")
}
