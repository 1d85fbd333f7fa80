package state

import (
	"cmp"
	"net/netip"
	"slices"
)

func (d *differ) links(observed, wanted []Link) {
	compare := func(a, b *Link) int { return cmp.Compare(a.Name, b.Name) }
	never := func(*Link, *Link) bool { return false }
	walk(observed, wanted, compare, never, func(o, w *Link) {
		switch {
		case w == nil:
			d.add(deleteLinks, DeleteLink{Name: o.Name})
			return
		case o == nil:
			d.add(setLinks, SetLink{Link: *w})
		case mustRecreate(o, w):
			d.add(setLinks, DeleteLink{Name: o.Name})
			d.add(setLinks, SetLink{Link: *w})
			d.expect(func(r *Route) bool { return r.Device != w.Name })
			o = nil
		case !sameLink(o, w):
			d.add(setLinks, SetLink{Link: *w})
			// With its last IPv4 address a link loses all IPv4 routes, those
			// in our tables and without a preferred source among them.
			if has4(o.Addresses) && !has4(w.Addresses) {
				d.expect(func(r *Route) bool { return r.Device != w.Name || r.Dst.Addr().Is6() })
			}
			if o.MTU != w.MTU {
				d.expect(mtuFollows(o, w))
			}
		}
		if w.Tunnel == nil {
			return
		}
		var peers []Peer
		if o != nil && o.Tunnel != nil {
			peers = o.Tunnel.Peers
		}
		// What could not be read may have peers that are alive.
		blind := o != nil && o.Tunnel == nil
		d.peers(w.Name, peers, w.Tunnel.Peers, blind)
	})
}

func (d *differ) expect(a aftermath) { d.aftermaths = append(d.aftermaths, a) }

// mtuFollows is what becomes of routes when their link's MTU changes: the
// kernel takes the MTU of an IPv6 route along where it does not fit the link
// any more, or was the link's own.
func mtuFollows(o, w *Link) aftermath {
	return func(r *Route) bool {
		if r.Device == w.Name && r.Dst.Addr().Is6() && r.MTU != 0 && (r.MTU >= w.MTU || r.MTU == o.MTU) {
			r.MTU = w.MTU
		}
		return true
	}
}

// mustRecreate tells whether the kernel has no other way from o to w: a link's
// kind is fixed, and so are a VXLAN's VNI and port. A VXLAN's device and local
// address come along, since kernels differ there and nobody caches that link's
// index.
func mustRecreate(o, w *Link) bool {
	if o.Kind != w.Kind {
		return true
	}
	if o.VXLAN == nil || w.VXLAN == nil {
		return o.VXLAN != w.VXLAN
	}
	return o.VXLAN.ID != w.VXLAN.ID || o.VXLAN.Port != w.VXLAN.Port ||
		o.VXLAN.Device != w.VXLAN.Device || o.VXLAN.Local != w.VXLAN.Local
}

// sameLink compares all that SetLink writes, for links that need no recreation.
func sameLink(o, w *Link) bool {
	if o.Loose != w.Loose || o.MTU != w.MTU || o.Down != w.Down || !slices.Equal(o.Addresses, w.Addresses) {
		return false
	}
	if w.Tunnel != nil && (o.Tunnel == nil ||
		o.Tunnel.Key != w.Tunnel.Key || o.Tunnel.Port != w.Tunnel.Port || o.Tunnel.Mark != w.Tunnel.Mark) {
		return false
	}
	return w.VXLAN == nil || (w.VXLAN.MAC == "" || o.VXLAN.MAC == w.VXLAN.MAC) && slices.Equal(o.VXLAN.Remotes, w.VXLAN.Remotes)
}

func has4(addresses []netip.Prefix) bool {
	return slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
}

// peers adds what turns the peers of one link into the wanted ones. An allowed
// IP belongs to one peer of a device, and adding it to one takes it from the
// other at once; so all additions come first, and move what moves without a
// gap. Only what then is left over must be taken away by itself.
//
// Blind tells that observed is empty because it could not be read: the
// endpoints of peers that may be alive are left alone.
func (d *differ) peers(link string, observed, wanted []Peer, blind bool) {
	var gains [][]netip.Prefix
	type loser struct {
		peer *Peer
		lost []netip.Prefix
	}
	var losers []loser
	same := func(o, w *Peer) bool { return o.Key == w.Key && samePeer(o, w) }
	walk(observed, wanted, comparePeers, same, func(o, w *Peer) {
		if w == nil {
			d.add(deletePeers, DeletePeer{Link: link, Key: o.Key})
			return
		}
		set := SetPeer{Link: link, Peer: *w, Create: o == nil}
		if o == nil {
			set.AddAllowedIPs = w.AllowedIPs
			set.SetEndpoint = w.Endpoint.IsValid() && !blind
		} else {
			set.AddAllowedIPs = missing(o.AllowedIPs, w.AllowedIPs)
			set.SetEndpoint = !sameEndpoint(o, w)
			if lost := missing(w.AllowedIPs, o.AllowedIPs); lost != nil {
				losers = append(losers, loser{w, lost})
			}
		}
		if set.AddAllowedIPs != nil {
			gains = append(gains, set.AddAllowedIPs)
		}
		if set.Create || set.SetEndpoint || set.AddAllowedIPs != nil ||
			o.PresharedKey != w.PresharedKey || o.Keepalive != w.Keepalive {
			d.add(setPeers, set)
		}
	})
	if losers == nil {
		return
	}
	gained := make(map[netip.Prefix]bool)
	for _, prefixes := range gains {
		for _, p := range prefixes {
			gained[p] = true
		}
	}
	for _, l := range losers {
		if slices.ContainsFunc(l.lost, func(p netip.Prefix) bool { return !gained[p] }) {
			d.add(shrinkPeers, SetPeer{Link: link, Peer: *l.peer, ReplaceAllowedIPs: true})
		}
	}
}

// samePeer tells whether nothing is to be written to make o what w wants.
func samePeer(o, w *Peer) bool {
	return o.PresharedKey == w.PresharedKey && o.Keepalive == w.Keepalive &&
		sameEndpoint(o, w) && slices.Equal(o.AllowedIPs, w.AllowedIPs)
}

// sameEndpoint tells whether o's endpoint is to stay. A peer that has roamed
// is not a peer that is wrong: while it is alive, where it speaks from is
// better than what anybody wants, unless that is news; and wanting nothing
// leaves it alone.
func sameEndpoint(o, w *Peer) bool {
	return !w.Endpoint.IsValid() || o.Endpoint == w.Endpoint || o.Alive && !w.Moved
}

// missing returns what is in all and not in some; both are sorted.
func missing(some, all []netip.Prefix) []netip.Prefix {
	var m []netip.Prefix
	walk(some, all, comparePrefixes, equal, func(_, p *netip.Prefix) {
		if p != nil {
			m = append(m, *p)
		}
	})
	return m
}
