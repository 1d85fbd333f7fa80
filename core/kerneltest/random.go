package kerneltest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Steps of a random walk, and its seeds: few, so that it ends soon on a real
// kernel; a failure names its seed.
const (
	walkSteps = 25
	walkSeeds = 2
)

// testRandomWalk wants one random State after the other: from each, one run
// leads to the next.
func testRandomWalk(s *scene) {
	for seed := range uint64(walkSeeds) {
		r := rand.New(rand.NewPCG(seed, 0))
		for step := range walkSteps {
			w := Random(r, s.wg, s.key)
			s.run(w)
			s.rest(w)
			if s.Failed() {
				s.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

// Random makes a State that a kernel can hold whose link lan0 has 10.0.0.1/24
// and fd00:10::1/64, with a WireGuard link of that name and key. It draws from
// few values, so that two States often have things in common, moved or changed.
func Random(r *rand.Rand, wireguard string, key model.Key) state.State {
	g := generator{r}
	tunnel := state.Link{
		Name: wireguard, Kind: state.WireGuard, MTU: one(g, 1420, 1380), Loose: g.half(),
		Addresses: some(g, prefix("10.4.0.1/32"), prefix("10.4.0.2/32"), prefix("fd00:4::1/128")),
		Tunnel:    &state.Tunnel{Key: key, Port: one[uint16](g, 51820, 51821), Mark: one[uint32](g, state.Mark, 0)},
	}
	tunnel.Tunnel.Peers = g.peers()
	s := state.State{Links: []state.Link{tunnel}}
	vxlan := g.half()
	if vxlan {
		s.Links = append(s.Links, state.Link{
			Name: state.VXLANLink, Kind: state.VXLAN, MTU: one(g, 1370, 1360),
			VXLAN: &state.VXLANConfig{
				ID: one[uint32](g, 77, 78), Port: one[uint16](g, 8473, 8474), Device: "lan0", Local: addr("10.0.0.1"),
				MAC: one(g, "02:00:00:00:00:01", "02:00:00:00:00:02"),
				Remotes: some(g,
					state.VXLANRemote{Inner: addr("10.4.0.9"), MAC: "02:00:00:00:00:09", Outer: addr("10.0.0.9")},
					state.VXLANRemote{Inner: addr("10.4.0.10"), MAC: one(g, "02:00:00:00:00:0a", "02:00:00:00:00:0b"), Outer: addr("10.0.0.10")},
				),
			},
		})
	}
	if kept := some(g, prefix("10.4.0.5/32"), prefix("10.4.0.6/32")); len(kept) > 0 {
		s.Links = append(s.Links, state.Link{Name: state.LoopbackLink, Kind: state.Loopback, Addresses: kept})
	}
	for _, table := range []int{state.TableOverlay, state.TableReturn} {
		// None encloses a gateway: an IPv6 route through one is refused where
		// our own tables lead to it some other way.
		for _, dst := range some(g, prefix("10.244.9.0/24"), prefix("10.244.0.0/16"), prefix("192.168.9.9/32"), prefix("0.0.0.0/0"),
			prefix("fd00:9::/64"), prefix("fd01::/16"), prefix("fd00:99::9/128")) {
			for _, metric := range some[uint32](g, 0, 7, state.MetricLast) {
				s.Routes = append(s.Routes, g.route(table, dst, metric, wireguard, vxlan))
			}
		}
	}
	for _, v6 := range []bool{false, true} {
		s.Rules = append(s.Rules, some(g,
			state.Rule{Priority: state.PriorityTunnel, V6: v6, Proto: "udp", SrcPort: tunnel.Tunnel.Port, Table: state.TableMain},
			state.Rule{Priority: state.PriorityTunnel, V6: v6, Proto: "udp", DstPort: tunnel.Tunnel.Port, Table: state.TableMain},
			state.Rule{Priority: state.PriorityTunnel, V6: v6, From: map[bool]netip.Addr{false: netip.MustParseAddr("198.51.100.1"), true: netip.MustParseAddr("2001:db8::1")}[v6],
				Proto: "tcp", SrcPort: 6443, Table: state.TableMain},
			state.Rule{Priority: state.PriorityReturn, V6: v6, IIF: wireguard, Table: state.TableReturn},
			state.Rule{Priority: state.PriorityOverlay, V6: v6, Invert: true, Mark: state.Mark, Table: state.TableOverlay},
		)...)
	}
	if g.half() {
		s.Filter = g.filter(wireguard)
	}
	g.r.Shuffle(len(s.Routes), func(i, j int) { s.Routes[i], s.Routes[j] = s.Routes[j], s.Routes[i] })
	g.r.Shuffle(len(s.Rules), func(i, j int) { s.Rules[i], s.Rules[j] = s.Rules[j], s.Rules[i] })
	return s
}

type generator struct{ r *rand.Rand }

func (g generator) half() bool { return g.r.IntN(2) == 0 }

func one[T any](g generator, of ...T) T { return of[g.r.IntN(len(of))] }

// some picks any number of the values, in any order.
func some[T any](g generator, of ...T) []T {
	of = slices.Clone(of)
	g.r.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of[:g.r.IntN(len(of)+1)]
}

// peers share out some prefixes.
func (g generator) peers() []state.Peer {
	var peers []state.Peer
	for _, name := range some(g, "a", "b", "c", "d") {
		p := state.Peer{
			Name: "node/" + name, Key: peerKey(name),
			Keepalive: one[time.Duration](g, 0, 10, 25) * time.Second,
		}
		if g.half() {
			p.Endpoint = netip.MustParseAddrPort(one(g, "203.0.113.9:51820", "203.0.113.10:4000", "[2001:db8::9]:51820"))
		}
		if g.half() {
			p.PresharedKey = model.NewPresharedKey([32]byte{one[byte](g, 1, 2)})
		}
		peers = append(peers, p)
	}
	if len(peers) == 0 {
		return nil
	}
	for i := range 8 {
		if g.half() {
			p := &peers[g.r.IntN(len(peers))]
			p.AllowedIPs = append(p.AllowedIPs, prefix(fmt.Sprintf("10.244.%d.0/24", i)))
		}
		if g.half() {
			p := &peers[g.r.IntN(len(peers))]
			p.AllowedIPs = append(p.AllowedIPs, prefix(fmt.Sprintf("fd00:%d::/64", i)))
		}
	}
	return peers
}

func (g generator) route(table int, dst netip.Prefix, metric uint32, wireguard string, vxlan bool) state.Route {
	r := state.Route{Table: table, Dst: dst, Metric: metric, Type: one(g, state.Unicast, state.Unicast, state.Unreachable, state.Throw)}
	if !dst.Addr().Is4() && g.r.IntN(5) == 0 {
		r.Type = state.Local
	}
	if r.Type != state.Unicast {
		return r
	}
	r.Device, r.MTU = one(g, wireguard, "lan0"), one(g, 0, 1300)
	if vxlan && g.half() {
		r.Device = state.VXLANLink
	}
	v4 := dst.Addr().Is4()
	pick := func(four, six string) netip.Addr {
		if v4 {
			return addr(four)
		}
		return addr(six)
	}
	if g.half() {
		r.Source = pick("10.0.0.1", "fd00:10::1")
	}
	switch {
	case g.half():
	case r.Device == "lan0" && g.half():
		r.Via = pick("10.0.0.9", "fd00:10::9")
	default:
		r.Via, r.OnLink = pick("10.4.0.9", "fd00:4::9"), true
	}
	return r
}

// filter takes the Vocabulary apart.
func (g generator) filter(wireguard string) state.Filter {
	f := Vocabulary(wireguard)
	for i := range f.Sets {
		f.Sets[i].Elements = some(g, f.Sets[i].Elements...)
	}
	f.Chains = some(g, f.Chains...)
	for i := range f.Chains {
		f.Chains[i].Rules = some(g, f.Chains[i].Rules...)
	}
	return f
}
