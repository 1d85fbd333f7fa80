package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

// The kinds of warnings about Peers that do not fit the cluster.
const (
	PeerTakesCluster = "PeerTakesCluster"
	PeerTakesAll     = "PeerTakesAll"
	DuplicatePeer    = "DuplicatePeer"
)

// Admit leaves out Peers that would take what is not theirs: a default route
// without DefaultRoute, or one that an older Peer has; addresses of the cluster (pods, nodes, WireGuard's and Services' ranges, API
// servers, allowed-location-ips), by overlap and not by equality; or a key or
// addresses of another Peer. Between two Peers the older one stays, ties go by
// UID. A Peer that is left out stands in nobody's way.
//
// It is pure, leaves s as it is, and expects nodes that Resolve has seen.
func Admit(s model.Snapshot) (model.Snapshot, []model.Warning) {
	if len(s.Peers) == 0 {
		return s, nil
	}
	var warnings []model.Warning
	cluster := clusterGround(&s)
	others, defaults := newGround(), map[netip.Prefix]owner{}
	keys := make(map[model.Key]owner, len(s.Nodes))
	for i := range s.Nodes {
		if n := &s.Nodes[i]; !n.Key.IsZero() {
			keys[n.Key] = owner{"node ", n.Name}
		}
	}

	byAge := slices.Clone(s.Peers)
	slices.SortFunc(byAge, func(a, b model.Peer) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.UID, b.UID), cmp.Compare(a.Name, b.Name))
	})
	admitted := make([]model.Peer, 0, len(byAge))
	for _, p := range byAge {
		if kind, why := objection(p, cluster, others, defaults, keys); kind != "" {
			warnings = append(warnings, model.Warning{
				Kind: kind, Object: "peer/" + p.Name,
				Message: why + "; the whole Peer is left out until that is corrected",
			})
			continue
		}
		keys[p.Key] = owner{"peer ", p.Name}
		for _, prefix := range p.AllowedIPs {
			if prefix.Bits() == 0 {
				defaults[prefix] = owner{"peer ", p.Name}
			}
			others.add(prefix, owner{"peer ", p.Name})
		}
		admitted = append(admitted, p)
	}
	s.Peers = admitted
	s.Sort()
	return s, warnings
}

// objection says why a Peer cannot be admitted; kind is "" when it can.
func objection(p model.Peer, cluster, others *ground, defaults map[netip.Prefix]owner, keys map[model.Key]owner) (kind, why string) {
	if other, taken := keys[p.Key]; taken {
		return DuplicatePeer, fmt.Sprintf("spec.publicKey: %s is the key of %s; WireGuard knows a party by its key alone, make one of its own", p.Key, other)
	}
	for _, prefix := range p.AllowedIPs {
		if prefix.Bits() == 0 {
			// Everything that somebody has is longer, and wins.
			if !p.DefaultRoute {
				return PeerTakesAll, fmt.Sprintf("spec.allowedIPs: %s would send all traffic of the nodes to this Peer; name the prefixes that are behind it, or set spec.defaultRoute: true if that is meant", prefix)
			}
			if other, taken := defaults[prefix]; taken {
				return DuplicatePeer, fmt.Sprintf("spec.allowedIPs: %s is the default route of %s already, which is older; there can be one", prefix, other)
			}
			continue
		}
		if theirs, other, found := cluster.overlap(prefix); found {
			return PeerTakesCluster, fmt.Sprintf("spec.allowedIPs: %s overlaps %s, %s; name addresses that the cluster does not use", prefix, theirs, other)
		}
		if theirs, other, found := others.overlap(prefix); found {
			return DuplicatePeer, fmt.Sprintf("spec.allowedIPs: %s overlaps %s of %s, which is older; two parties cannot have one address", prefix, theirs, other)
		}
	}
	return "", ""
}

// clusterGround is every prefix that is the cluster's own.
func clusterGround(s *model.Snapshot) *ground {
	g := newGround()
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, p := range n.PodPrefixes {
			g.add(p, owner{"pods of node ", n.Name})
		}
		for _, p := range n.InternalIPs {
			g.add(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), owner{"the address of node ", n.Name})
		}
		for _, a := range n.WireGuardIPs {
			g.add(netip.PrefixFrom(a, a.BitLen()), owner{"the WireGuard address of node ", n.Name})
		}
		for _, p := range n.AllowedLocationIPs {
			g.add(p, owner{"allowed-location-ips of node ", n.Name})
		}
	}
	for _, p := range s.WireGuardSubnets {
		g.add(p, owner{"the range of WireGuard addresses", ""})
	}
	for _, p := range s.ServicePrefixes {
		g.add(p, owner{"the range of Services", ""})
	}
	for _, a := range s.APIServers {
		g.add(netip.PrefixFrom(a.Addr(), a.Addr().BitLen()), owner{"an API server", ""})
	}
	return g
}

// ground is a set of prefixes with their owners that finds overlaps without
// walking over all of them.
type ground struct {
	owners map[netip.Prefix]owner
	// lengths counts the prefixes of each length, by family.
	lengths [2][129]int
}

// owner is whose a prefix or key is, in words that are put together only for a
// warning.
type owner struct{ what, name string }

func (o owner) String() string { return o.what + o.name }

func newGround() *ground { return &ground{owners: make(map[netip.Prefix]owner)} }

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// add puts a prefix in; the first owner of a prefix stays. Prefixes that are
// invalid or hold every address are nobody's ground.
func (g *ground) add(p netip.Prefix, whose owner) {
	p = p.Masked()
	if _, ok := g.owners[p]; ok || p.Bits() < 1 {
		return
	}
	g.owners[p] = whose
	g.lengths[family(p)][p.Bits()]++
}

// overlap returns a prefix of the set that has addresses in common with p: the
// widest around it, else the first inside it.
func (g *ground) overlap(p netip.Prefix) (netip.Prefix, owner, bool) {
	lengths := &g.lengths[family(p)]
	for bits := 0; bits <= p.Bits(); bits++ {
		if lengths[bits] == 0 {
			continue
		}
		around, err := p.Addr().Prefix(bits)
		if err != nil {
			continue
		}
		if whose, ok := g.owners[around]; ok {
			return around, whose, true
		}
	}
	longer := 0
	for bits := p.Bits() + 1; bits < len(lengths); bits++ {
		longer += lengths[bits]
	}
	if longer == 0 {
		return netip.Prefix{}, owner{}, false
	}
	var inside netip.Prefix
	for other := range g.owners {
		if p.Overlaps(other) && (!inside.IsValid() || other.Compare(inside) < 0) {
			inside = other
		}
	}
	return inside, g.owners[inside], inside.IsValid()
}
