package kerneltest

import (
	"crypto/sha256"
	"net/netip"
	"slices"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func peerKey(name string) model.Key { return sha256.Sum256([]byte(name)) }

// peer makes a peer; endpoint may be "" and keepalive is in seconds.
func (s *scene) peer(name, endpoint string, keepalive int, allowed ...string) state.Peer {
	p := state.Peer{Name: "node/" + name, Key: peerKey(name), Keepalive: time.Duration(keepalive) * time.Second}
	if endpoint != "" {
		p.Endpoint = netip.MustParseAddrPort(endpoint)
	}
	for _, a := range allowed {
		p.AllowedIPs = append(p.AllowedIPs, prefix(a))
	}
	return p
}

// withPeers is bare with peers.
func (s *scene) withPeers(peers ...state.Peer) state.State {
	w := s.bare()
	w.Links[0].Tunnel.Peers = peers
	return w
}

func testLinkChanged(s *scene) {
	w := s.whole()
	s.run(w)
	l := &w.Links[0]

	// IPv6 routes follow the MTU of their link where it is less than theirs,
	// or was theirs; IPv4 routes keep their own.
	mtu := func(link, route6 int) {
		s.Helper()
		l.MTU = link
		s.apply(state.SetLink{Link: *l})
		then := w
		then.Routes = slices.Clone(w.Routes)
		for i := range then.Routes {
			if r := &then.Routes[i]; r.Dst == prefix("fd00:9::/64") && r.Type == state.Unicast {
				r.MTU = route6
			}
		}
		s.same(s.observe(), then)
	}
	mtu(1410, 1400)
	mtu(1390, 1390)
	mtu(1415, 1415)
	mtu(1420, 1420)
	s.run(w)
	// One run makes up for it.
	l.MTU = 1380
	s.run(w)
	l.Tunnel.Mark = 0
	s.run(w)
	l.Tunnel.Port = 51821
	s.run(w)
	l.Addresses = []netip.Prefix{prefix("10.4.0.7/32")}
	s.run(w)
	v := &w.Links[1]
	v.MTU = 1360
	s.run(w)
	v.VXLAN.Remotes = []state.VXLANRemote{
		{Inner: addr("10.4.0.10"), MAC: "02:00:00:00:00:0b", Outer: addr("10.0.0.11")},
		{Inner: addr("10.4.0.11"), MAC: "02:00:00:00:00:0c", Outer: addr("10.0.0.12")},
	}
	s.run(w)
	v.VXLAN.MAC = "02:00:00:00:00:07"
	s.run(w)
	v.VXLAN.Remotes = nil
	s.run(w)
	s.rest(w)
	s.apply(state.SetLink{Link: *l}, state.SetLink{Link: *v})
	s.same(s.observe(), w)
}

func testLinkMended(s *scene) {
	w := s.whole()
	s.run(w)

	s.RemoveLink(state.VXLANLink)
	found := s.observe()
	if slices.ContainsFunc(found.Routes, func(r state.Route) bool { return r.Device == state.VXLANLink }) {
		s.Error("routes outlive their link")
	}
	if got := unreachables(found); got != unreachables(w) {
		s.Errorf("of %d unreachables, %d outlive the link", unreachables(w), got)
	}
	s.run(w)

	for _, name := range []string{state.VXLANLink, s.wg} {
		s.TakeDown(name)
		found = s.observe()
		i := slices.IndexFunc(found.Links, func(l state.Link) bool { return l.Name == name })
		if i < 0 || !found.Links[i].Down {
			s.Errorf("link %s was taken down; observed:\n%s", name, found)
		}
		s.run(w)
	}

	// A VXLAN goes with the link under it.
	s.RemoveLink("lan0")
	if found = s.observe(); len(found.Links) != 1 {
		s.Errorf("lan0 is gone and what stood on it is not:\n%s", found)
	}
	s.refuse(state.SetLink{Link: s.vxlan()}, "lan0")
	s.AddLink("lan0", prefix("10.0.0.1/24"), prefix("fd00:10::1/64"))
	s.run(w)
}

func unreachables(s state.State) (n int) {
	for _, r := range s.Routes {
		if r.Type == state.Unreachable {
			n++
		}
	}
	return n
}

func testLinkRecreated(s *scene) {
	w := s.whole()
	s.run(w)
	// The kernel cannot change these; the routes must be there afterwards.
	w.Links[1].VXLAN.ID = 78
	s.run(w)
	w.Links[1].VXLAN.Port = 8474
	s.run(w)
	s.AddLink("lan1", prefix("10.1.0.1/24"))
	w.Links[1].VXLAN.Device, w.Links[1].VXLAN.Local = "lan1", addr("10.1.0.1")
	s.run(w)
	s.rest(w)
	// Deleting is idempotent.
	s.apply(state.DeleteLink{Name: state.VXLANLink}, state.DeleteLink{Name: state.VXLANLink})
	if found := s.observe(); len(found.Links) != 1 || found.Links[0].Name != s.wg {
		s.Errorf("kilo-vxlan was deleted; found:\n%s", found)
	}
}

// testLinkStandby has a second WireGuard link beside the first.
func testLinkStandby(s *scene) {
	w := s.whole()
	w.Links[0].Loose = true
	second := state.TunnelLink(s.wg, 1)
	w.Links = append(w.Links, state.Link{Name: second, Kind: state.WireGuard, MTU: 1420, Loose: true, Tunnel: &state.Tunnel{
		Key: s.key, Port: s.port + 1, Mark: state.Mark,
		// The same prefix as a peer of the first link: each link has its own.
		Peers: []state.Peer{s.peer("w2", "203.0.113.10:51820", 10, "10.244.9.0/24", "10.4.0.3/32")},
	}})
	w.Routes = append(w.Routes, state.Route{Table: state.TableOverlay, Dst: prefix("10.4.0.3/32"), Type: state.Unicast, Device: second, Source: addr("10.0.0.1")})
	s.run(w)
	s.rest(w)

	// A way moves from one link to the other, and back.
	moved := slices.IndexFunc(w.Routes, func(r state.Route) bool { return r.Dst == prefix("10.244.9.0/24") && r.Type == state.Unicast })
	for _, link := range []string{second, s.wg, second} {
		w.Routes[moved].Device = link
		s.run(w)
	}

	s.RemoveLink(second)
	if found := s.observe(); slices.ContainsFunc(found.Links, func(l state.Link) bool { return l.Name == second }) {
		s.Errorf("%s was removed; found:\n%s", second, found)
	}
	s.run(w)

	s.run(s.whole())
	if found := s.observe(); slices.ContainsFunc(found.Links, func(l state.Link) bool { return l.Name == second }) {
		s.Errorf("%s is not wanted any more; found:\n%s", second, found)
	}
}

// testLinkForeign finds somebody else's link under our name.
func testLinkForeign(s *scene) {
	s.run(s.bare())
	s.AddLink(state.VXLANLink, prefix("172.16.0.1/24"))
	before := s.Everything()
	s.same(s.observe(), s.bare())
	s.refuse(state.SetLink{Link: s.vxlan()}, state.VXLANLink, "belongs to somebody else")
	s.apply(state.DeleteLink{Name: state.VXLANLink})
	if d := difference(s.Everything(), before); d != "" {
		s.Errorf("a stranger's link was touched:\n%s", d)
	}
	s.RemoveLink(state.VXLANLink)
	s.run(s.whole())
}

func testLinkUnnumbered(s *scene) {
	w := s.whole()
	s.run(w)
	all := w.Links[0].Addresses
	// With its last IPv4 address a link loses its IPv4 routes, and them only.
	w.Links[0].Addresses = all[1:]
	s.apply(state.SetLink{Link: w.Links[0]})
	without := w
	without.Routes = slices.DeleteFunc(slices.Clone(w.Routes), func(r state.Route) bool {
		return r.Device == s.wg && r.Dst.Addr().Is4()
	})
	s.same(s.observe(), without)
	s.run(w)
	w.Links[0].Addresses = all
	s.run(w)
	// One run makes up for it.
	w.Links[0].Addresses = nil
	s.run(w)
	w.Links[0].Addresses = all
	s.run(w)
	// Another address in the place of the last one costs nothing.
	w.Links[0].Addresses = []netip.Prefix{prefix("10.4.0.77/32")}
	s.run(w)
	s.rest(w)
}

func testPeerPatched(s *scene) {
	w1 := s.peer("w1", "203.0.113.9:51820", 10, "10.244.9.0/24", "192.168.9.9/32")
	n1 := s.peer("n1", "203.0.113.1:51820", 0, "10.244.1.0/24", "fd00:1::/64")
	s.run(s.withPeers(w1, n1))

	change := func(p state.Peer, also ...state.Peer) {
		s.Helper()
		s.run(s.withPeers(append(also, p)...))
	}
	w1.AllowedIPs = append(w1.AllowedIPs, prefix("10.244.8.0/24"))
	change(w1, n1)
	w1.AllowedIPs = w1.AllowedIPs[1:]
	change(w1, n1)
	w1.AllowedIPs = []netip.Prefix{prefix("10.244.77.0/24"), prefix("10.244.8.0/24")}
	change(w1, n1)
	w1.PresharedKey = model.NewPresharedKey([32]byte{1, 2, 3})
	change(w1, n1)
	w1.PresharedKey = model.PresharedKey{}
	change(w1, n1)
	w1.Keepalive = 0
	change(w1, n1)
	w1.Keepalive = 25 * time.Second
	change(w1, n1)
	w1.Endpoint = netip.MustParseAddrPort("[2001:db8::9]:4000")
	change(w1, n1)
	w1.AllowedIPs = nil
	change(w1, n1)

	// An endpoint that is not to be written is not, whatever it is.
	elsewhere := w1
	elsewhere.Endpoint = netip.MustParseAddrPort("192.0.2.1:1")
	s.apply(state.SetPeer{Link: s.wg, Peer: elsewhere})
	s.same(s.observe(), s.withPeers(w1, n1))

	// Wanting no endpoint leaves the one there is.
	there := n1.Endpoint
	n1.Endpoint, n1.Keepalive = netip.AddrPort{}, 5*time.Second
	change(w1, n1)
	for _, p := range s.observe().Links[0].Tunnel.Peers {
		if p.Key == n1.Key && p.Endpoint != there {
			s.Errorf("endpoint %s became %s", there, p.Endpoint)
		}
		if p.Alive {
			s.Errorf("peer %s never shook hands and is alive", p)
		}
	}

	change(n1)
	s.apply(state.DeletePeer{Link: s.wg, Key: w1.Key}, state.DeletePeer{Link: s.wg, Key: n1.Key}, state.DeletePeer{Link: s.wg, Key: n1.Key})
	s.same(s.observe(), s.bare())
	s.refuse(state.SetPeer{Link: "nosuch", Peer: n1, Create: true}, "nosuch")
}

func testPeerMoves(s *scene) {
	a := s.peer("a", "", 0, "10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24")
	b := s.peer("b", "", 0, "10.4.0.0/24", "10.5.0.0/24", "fd00:5::/64")
	s.run(s.withPeers(a, b))

	// Adding to one takes from the other.
	s.apply(state.SetPeer{Link: s.wg, Peer: b, AddAllowedIPs: []netip.Prefix{prefix("10.1.0.0/24")}})
	s.same(s.observe(), s.withPeers(
		s.peer("a", "", 0, "10.2.0.0/24", "10.3.0.0/24"),
		s.peer("b", "", 0, "10.1.0.0/24", "10.4.0.0/24", "10.5.0.0/24", "fd00:5::/64")))
	// A wider or narrower prefix is another.
	s.apply(state.SetPeer{Link: s.wg, Peer: b, AddAllowedIPs: []netip.Prefix{prefix("10.2.0.0/16"), prefix("10.2.0.0/25")}})
	s.same(s.observe(), s.withPeers(
		s.peer("a", "", 0, "10.2.0.0/24", "10.3.0.0/24"),
		s.peer("b", "", 0, "10.1.0.0/24", "10.2.0.0/16", "10.2.0.0/25", "10.4.0.0/24", "10.5.0.0/24", "fd00:5::/64")))

	// Both give and take and lose, in one run; a third takes over and one goes.
	s.run(s.withPeers(a, b))
	s.run(s.withPeers(
		s.peer("a", "", 0, "10.4.0.0/24", "10.2.0.0/24", "fd00:5::/64"),
		s.peer("b", "", 0, "10.1.0.0/24", "10.5.0.0/24")))
	s.run(s.withPeers(
		s.peer("c", "", 0, "10.4.0.0/24", "10.2.0.0/24"),
		s.peer("b", "", 0, "10.1.0.0/24", "fd00:5::/64")))
	s.run(s.withPeers(
		s.peer("c", "", 0, "10.1.0.0/24"),
		s.peer("b", "", 0, "10.4.0.0/24")))
}

// testLoopback keeps addresses of ours where the loopback link's own are.
func testLoopback(s *scene) {
	s.run(s.bare())
	before := s.Everything()
	w := s.bare()
	w.Links = append(w.Links, state.Link{Name: state.LoopbackLink, Kind: state.Loopback,
		Addresses: []netip.Prefix{prefix("10.4.0.1/32"), prefix("10.4.0.2/32")}})
	s.run(w)
	s.rest(w)
	w.Links[1].Addresses = []netip.Prefix{prefix("10.4.0.3/32")}
	s.run(w)
	s.refuse(state.SetLink{Link: state.Link{Name: state.LoopbackLink, Kind: state.Loopback,
		Addresses: []netip.Prefix{prefix("fd00:4::1/128")}}}, "fd00:4::1")
	s.apply(state.DeleteLink{Name: state.LoopbackLink}, state.DeleteLink{Name: state.LoopbackLink})
	s.same(s.observe(), s.bare())
	if d := difference(s.Everything(), before); d != "" {
		s.Errorf("something is left behind, or gone:\n%s", d)
	}
}
