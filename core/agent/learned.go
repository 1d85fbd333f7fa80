package agent

import (
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// learned returns the endpoints to publish for the sake of other nodes: those
// of parties that publish none themselves, as this node's device learned them
// from packets that proved the party's key.
//
// peers are what this node's plan wants; a party that is no peer of ours any
// more is forgotten. before is what the node published so far: a device that
// was started anew has heard nobody yet, and silence is no reason to take back
// what was learned.
func learned(s *model.Snapshot, peers []*state.Peer, heard []PeerStatus, before map[model.Key]netip.AddrPort, foreign func(netip.Addr) bool) map[model.Key]netip.AddrPort {
	silent := map[model.Key]bool{}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Endpoint.IsZero() {
			silent[n.Key] = true
		}
	}
	for i := range s.Peers {
		if p := &s.Peers[i]; p.Endpoint.IsZero() {
			silent[p.Key] = true
		}
	}
	now := map[model.Key]netip.AddrPort{}
	for i := range heard {
		if h := &heard[i]; !h.LastHandshake.IsZero() && h.Endpoint.IsValid() {
			now[h.Key] = netip.AddrPortFrom(h.Endpoint.Addr().Unmap(), h.Endpoint.Port())
		}
	}
	var out map[model.Key]netip.AddrPort
	for _, peer := range peers {
		k := peer.Key
		if !silent[k] {
			continue
		}
		at, ok := now[k]
		if !ok || !foreign(at.Addr()) {
			at, ok = before[k], before[k].IsValid()
		}
		if ok && foreign(at.Addr()) {
			if out == nil {
				out = map[model.Key]netip.AddrPort{}
			}
			out[k] = at
		}
	}
	return out
}

// outside returns a function that tells whether an address can be an endpoint
// at all: one that lies in a pod, Service, overlay or internal prefix would
// lead the tunnel through itself.
func outside(s *model.Snapshot, clusterPrefixes []netip.Prefix) func(netip.Addr) bool {
	inside := slices.Concat(s.WireGuardSubnets, s.ServicePrefixes, clusterPrefixes)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		inside = append(inside, n.PodPrefixes...)
		inside = append(inside, n.AllowedLocationIPs...)
		for _, p := range n.InternalIPs {
			if !p.Addr().IsPrivate() {
				// A node's internal address may be its public one; its
				// neighbours there are strangers, and good endpoints.
				p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
			}
			inside = append(inside, p)
		}
	}
	for i := range s.Peers {
		for _, p := range s.Peers[i].AllowedIPs {
			if p.Bits() > 0 { // a default route leads to everywhere
				inside = append(inside, p)
			}
		}
	}
	return func(a netip.Addr) bool {
		return a.IsGlobalUnicast() && !slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Contains(a) })
	}
}
