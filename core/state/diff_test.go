package state_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// changes prints a Diff, a line for each Change.
func changes(observed, wanted state.State) string {
	var b strings.Builder
	for _, c := range state.Diff(observed, wanted) {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

func expect(t *testing.T, observed, wanted state.State, want string) {
	t.Helper()
	if got := changes(observed, wanted); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// What must stop a packet stands before what would let it pass, and goes after it.
func TestInstallAndUninstallInOrder(t *testing.T) {
	expect(t, state.State{}, gateway(), `
set table inet kilo: 1 sets of 3 elements, 1 chains of 2 rules
set route table 1107 throw 10.0.0.0/24
set route table 1107 unreachable 10.244.9.0/24 metric 4294967295
set link kilo0 wireguard mtu 1420 addr 10.4.0.1/32 tunnel key 4QAA…AAA= port 51820 mark 0x1000
set peer node/w1 (AQAA…AAk=) on kilo0 create endpoint 203.0.113.9:51820 keepalive 10s allowed +10.4.0.2/32 +10.244.9.0/24 +192.168.9.9/32
set peer peer/laptop (AgAA…AAA=) on kilo0 create psk sha256:07bac797 allowed +10.5.0.1/32
set route table 1107 10.244.9.0/24 dev kilo0 src 10.0.0.1 mtu 1420
set route table 1108 10.0.0.2/32 via 10.244.2.0 dev flannel.1 onlink
add rule 105 inet ipproto udp dport 51820 lookup main
add rule 105 inet ipproto udp sport 51820 lookup main
add rule 105 inet from 198.51.100.1 ipproto tcp sport 6443 lookup main
add rule 106 inet iif kilo0 lookup 1108
add rule 107 inet not fwmark 0x1000 lookup 1107
`)
	expect(t, gateway(), state.State{}, `
delete rule 107 inet not fwmark 0x1000 lookup 1107
delete rule 106 inet iif kilo0 lookup 1108
delete rule 105 inet from 198.51.100.1 ipproto tcp sport 6443 lookup main
delete rule 105 inet ipproto udp sport 51820 lookup main
delete rule 105 inet ipproto udp dport 51820 lookup main
delete route table 1107 10.244.9.0/24 dev kilo0 src 10.0.0.1 mtu 1420
delete route table 1108 10.0.0.2/32 via 10.244.2.0 dev flannel.1 onlink
delete link kilo0
delete route table 1107 unreachable 10.244.9.0/24 metric 4294967295
delete route table 1107 throw 10.0.0.0/24
delete table inet kilo
`)
	expect(t, gateway(), gateway(), "")
}

func route(text string) state.Route {
	r := state.Route{Table: state.TableOverlay, Type: state.Unicast}
	w := strings.Fields(text)
	for i := 0; i < len(w); i++ {
		switch w[i] {
		case "unreachable":
			r.Type = state.Unreachable
		case "throw":
			r.Type = state.Throw
		case "dev":
			r.Device, i = w[i+1], i+1
		case "via":
			r.Via, i = netip.MustParseAddr(w[i+1]), i+1
		case "last":
			r.Metric = state.MetricLast
		case "mtu":
			r.MTU, i = map[string]int{"1420": 1420, "1380": 1380, "1300": 1300}[w[i+1]], i+1
		default:
			r.Dst = netip.MustParsePrefix(w[i])
		}
	}
	return r
}

func routes(texts ...string) (s state.State) {
	for _, t := range texts {
		s.Routes = append(s.Routes, route(t))
	}
	return s
}

func TestRoutesAreReplacedInPlaceAndRemovedLast(t *testing.T) {
	// A location goes, another comes, a third moves to another way.
	expect(t,
		routes("10.1.0.0/24 dev kilo0", "unreachable 10.1.0.0/24 last", "10.2.0.0/24 dev kilo0", "unreachable 10.2.0.0/24 last"),
		routes("10.2.0.0/24 via 10.0.0.1 dev eth0", "unreachable 10.2.0.0/24 last", "10.3.0.0/24 dev kilo0", "unreachable 10.3.0.0/24 last"), `
set route table 1107 unreachable 10.3.0.0/24 metric 4294967295
set route table 1107 10.2.0.0/24 via 10.0.0.1 dev eth0
set route table 1107 10.3.0.0/24 dev kilo0
delete route table 1107 10.1.0.0/24 dev kilo0
delete route table 1107 unreachable 10.1.0.0/24 metric 4294967295
`)
	// Own ground is excepted before the wide prefix that encloses it comes,
	// and until it is gone.
	wide := []string{"10.0.0.0/8 dev kilo0", "unreachable 10.0.0.0/8 last", "throw 10.0.0.0/24"}
	expect(t, state.State{}, routes(wide...), `
set route table 1107 throw 10.0.0.0/24
set route table 1107 unreachable 10.0.0.0/8 metric 4294967295
set route table 1107 10.0.0.0/8 dev kilo0
`)
	expect(t, routes(wide...), state.State{}, `
delete route table 1107 10.0.0.0/8 dev kilo0
delete route table 1107 unreachable 10.0.0.0/8 metric 4294967295
delete route table 1107 throw 10.0.0.0/24
`)
	// Where the type changes, the new one takes the old one's place.
	expect(t, routes("10.1.0.0/24 dev kilo0"), routes("unreachable 10.1.0.0/24"), "set route table 1107 unreachable 10.1.0.0/24\n")
}

func TestAFilterChangesFirstAndGoesLast(t *testing.T) {
	guard := gateway().Filter
	smaller := state.Filter{Sets: []state.Set{{Name: "remote4"}}, Chains: guard.Chains}
	with := func(f state.Filter, texts ...string) state.State {
		s := routes(texts...)
		s.Filter = f
		return s
	}
	// What is not remote any more is let out when its route goes, not after.
	expect(t, with(guard, "10.1.0.0/24 dev kilo0"), with(smaller), `
set table inet kilo: 1 sets of 0 elements, 1 chains of 2 rules
delete route table 1107 10.1.0.0/24 dev kilo0
`)
	expect(t, with(guard, "10.1.0.0/24 dev kilo0"), with(state.Filter{}), `
delete route table 1107 10.1.0.0/24 dev kilo0
delete table inet kilo
`)
	// A way to the gateway is open until no route takes it any more.
	by := func(via string) state.Filter {
		f := gateway().Filter
		f.Chains = slices.Clone(f.Chains)
		f.Chains[0].Rules = append([]state.FilterRule{{Action: state.Accept{}, Comment: "to the gateway",
			Matches: []state.Match{state.OutInterface{Name: "lan0"}, state.NextHop{Addr: netip.MustParseAddr(via)}}}}, f.Chains[0].Rules...)
		return f
	}
	expect(t, with(by("10.0.0.1"), "10.1.0.0/24 via 10.0.0.1 dev lan0"), with(by("10.0.0.2"), "10.1.0.0/24 via 10.0.0.2 dev lan0"), `
set table inet kilo: 1 sets of 3 elements, 1 chains of 4 rules
set route table 1107 10.1.0.0/24 via 10.0.0.2 dev lan0
set table inet kilo: 1 sets of 3 elements, 1 chains of 3 rules
`)
	// A stranger's rule in our table is not what we want, whatever it says.
	meddled := gateway()
	meddled.Filter.Chains[0].Rules = append(meddled.Filter.Chains[0].Rules, state.FilterRule{Action: state.Unknown{Text: "counter"}})
	expect(t, meddled, gateway(), "set table inet kilo: 1 sets of 3 elements, 1 chains of 2 rules\n")
}

func TestARuleIsReplacedWithoutAGap(t *testing.T) {
	rules := func(port uint16) state.State {
		return state.State{Rules: []state.Rule{
			{Priority: 105, Proto: "udp", SrcPort: port, Table: state.TableMain},
			{Priority: 107, Invert: true, Mark: 0x1000, Table: state.TableOverlay},
		}}
	}
	expect(t, rules(51820), rules(51821), `
add rule 105 inet ipproto udp sport 51821 lookup main
delete rule 105 inet ipproto udp sport 51820 lookup main
`)
}

// tunnel is a State of one WireGuard link.
func tunnel(peers ...state.Peer) state.State {
	return state.State{Links: []state.Link{{
		Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Addresses: prefixes("10.4.0.1/32"),
		Tunnel: &state.Tunnel{Port: 51820, Peers: peers},
	}}}
}

func peer(name string, endpoint string, allowed ...string) state.Peer {
	p := state.Peer{Name: name, AllowedIPs: prefixes(allowed...)}
	copy(p.Key[:], name)
	if endpoint != "" {
		p.Endpoint = netip.MustParseAddrPort(endpoint)
	}
	return p
}

func with(p state.Peer, change func(*state.Peer)) state.Peer {
	change(&p)
	return p
}

// TC21, TC24: where a live peer speaks from stays; one that is silent goes where it should be.
func TestAPeerThatRoamedIsNotWrong(t *testing.T) {
	const here, there = "203.0.113.9:51820", "198.51.100.7:4000"
	alive := func(p *state.Peer) { p.Alive = true }
	// Wanted without an endpoint, it may be anywhere.
	expect(t, tunnel(peer("w1", there)), tunnel(peer("w1", "")), "")
	// Alive, it stays where it speaks from.
	expect(t, tunnel(with(peer("w1", there), alive)), tunnel(peer("w1", here)), "")
	// Silent, it is knocked at where it should be.
	expect(t, tunnel(peer("w1", there)), tunnel(peer("w1", here)), "set peer w1 (dzEA…AAA=) on kilo0 endpoint 203.0.113.9:51820\n")
	// Unless it is known to have moved.
	expect(t, tunnel(with(peer("w1", there), alive)), tunnel(with(peer("w1", here), func(p *state.Peer) { p.Moved = true })),
		"set peer w1 (dzEA…AAA=) on kilo0 endpoint 203.0.113.9:51820\n")
	expect(t, tunnel(with(peer("w1", here), alive)), tunnel(with(peer("w1", here), func(p *state.Peer) { p.Moved = true })), "")
	// Whatever else is written, the endpoint of a live one is not.
	for _, c := range state.Diff(tunnel(with(peer("w1", there), alive)), tunnel(with(peer("w1", here, "10.1.0.0/24"), func(p *state.Peer) { p.Keepalive = time.Second }))) {
		if c := c.(state.SetPeer); c.SetEndpoint || len(c.AddAllowedIPs) != 1 {
			t.Errorf("a live peer is patched with %+v", c)
		}
	}
	// An IPv4 address in IPv6's clothes is the same address.
	expect(t, tunnel(peer("w1", "[::ffff:203.0.113.9]:51820")), tunnel(peer("w1", here)), "")
}

func TestPeersAreComparedOneByOne(t *testing.T) {
	// TC25: nothing wanted of one peer's endpoint hides another's change.
	quiet := peer("p1", "")
	psk := with(peer("p2", "", "10.2.0.0/24"), func(p *state.Peer) { p.PresharedKey = model.NewPresharedKey([32]byte{5, 5, 5}) })
	expect(t, tunnel(quiet, peer("p2", "")), tunnel(quiet, psk),
		"set peer p2 (cDIA…AAA=) on kilo0 psk sha256:07bac797 allowed +10.2.0.0/24\n")
	expect(t, tunnel(psk), tunnel(peer("p2", "", "10.2.0.0/24")), "set peer p2 (cDIA…AAA=) on kilo0\n")
	keep := func(d time.Duration) state.Peer {
		return with(quiet, func(p *state.Peer) { p.Keepalive = d })
	}
	expect(t, tunnel(quiet), tunnel(keep(10*time.Second)), "set peer p1 (cDEA…AAA=) on kilo0 keepalive 10s\n")
	expect(t, tunnel(keep(10*time.Second)), tunnel(quiet), "set peer p1 (cDEA…AAA=) on kilo0\n")
	// WireGuard counts seconds, and nobody compares names.
	expect(t, tunnel(keep(10*time.Second)), tunnel(with(keep(10*time.Second+time.Millisecond), func(p *state.Peer) { p.Name = "other" })), "")
}

func TestAllowedIPsMoveWithoutAGap(t *testing.T) {
	// One more node in a location: one patch that adds.
	expect(t, tunnel(peer("w1", "", "10.1.0.0/24")), tunnel(peer("w1", "", "10.1.0.0/24", "10.2.0.0/24")),
		"set peer w1 (dzEA…AAA=) on kilo0 allowed +10.2.0.0/24\n")
	// A move is one addition: WireGuard takes it from the other.
	expect(t,
		tunnel(peer("w1", "", "10.1.0.0/24", "10.2.0.0/24"), peer("w2", "", "10.3.0.0/24")),
		tunnel(peer("w1", "", "10.1.0.0/24"), peer("w2", "", "10.2.0.0/24", "10.3.0.0/24")),
		"set peer w2 (dzIA…AAA=) on kilo0 allowed +10.2.0.0/24\n")
	// Another gateway takes a location over; the old one goes when all has moved.
	expect(t, tunnel(peer("w1", "", "10.1.0.0/24", "10.2.0.0/24")), tunnel(peer("w2", "", "10.1.0.0/24", "10.2.0.0/24")), `
set peer w2 (dzIA…AAA=) on kilo0 create allowed +10.1.0.0/24 +10.2.0.0/24
delete peer dzEA…AAA= on kilo0
`)
	// Two exchange and both lose: all have what they gain before anything is replaced.
	expect(t,
		tunnel(peer("w1", "", "10.1.0.0/24", "10.11.0.0/24"), peer("w2", "", "10.2.0.0/24", "10.22.0.0/24")),
		tunnel(peer("w1", "", "10.2.0.0/24"), peer("w2", "", "10.1.0.0/24")), `
set peer w1 (dzEA…AAA=) on kilo0 allowed +10.2.0.0/24
set peer w2 (dzIA…AAA=) on kilo0 allowed +10.1.0.0/24
set peer w1 (dzEA…AAA=) on kilo0 allowed = 10.2.0.0/24
set peer w2 (dzIA…AAA=) on kilo0 allowed = 10.1.0.0/24
`)
	// A node goes: its route first, then what the peer may send.
	before, after := tunnel(peer("w1", "", "10.1.0.0/24", "10.2.0.0/24")), tunnel(peer("w1", "", "10.1.0.0/24"))
	before.Routes = routes("10.1.0.0/24 dev kilo0", "10.2.0.0/24 dev kilo0").Routes
	after.Routes = before.Routes[:1]
	expect(t, before, after, `
delete route table 1107 10.2.0.0/24 dev kilo0
set peer w1 (dzEA…AAA=) on kilo0 allowed = 10.1.0.0/24
`)
}

func TestALinkIsUpdatedNotRecreated(t *testing.T) {
	was := tunnel(peer("w1", "", "10.1.0.0/24"))
	change := func(f func(*state.Link)) state.State {
		s := tunnel(peer("w1", "", "10.1.0.0/24"))
		f(&s.Links[0])
		return s
	}
	expect(t, was, change(func(l *state.Link) { l.MTU = 1380 }),
		"set link kilo0 wireguard mtu 1380 addr 10.4.0.1/32 tunnel key AAAA…AAA= port 51820\n")
	expect(t, was, change(func(l *state.Link) { l.Addresses = prefixes("10.4.0.2/32") }),
		"set link kilo0 wireguard mtu 1420 addr 10.4.0.2/32 tunnel key AAAA…AAA= port 51820\n")
	expect(t, change(func(l *state.Link) { l.Down = true }), was,
		"set link kilo0 wireguard mtu 1420 addr 10.4.0.1/32 tunnel key AAAA…AAA= port 51820\n")
	expect(t, was, change(func(l *state.Link) { l.Tunnel.Mark = state.Mark }),
		"set link kilo0 wireguard mtu 1420 addr 10.4.0.1/32 tunnel key AAAA…AAA= port 51820 mark 0x1000\n")
}

// What a link takes with it was observed and is gone all the same.
func TestRoutesThatVanishWithALinkAreSetAgain(t *testing.T) {
	all := []string{"10.1.0.0/24 dev kilo-vxlan", "fd00:1::/64 dev kilo-vxlan", "10.2.0.0/24 dev eth0", "unreachable 10.1.0.0/24 last"}
	vxlan := func(change func(*state.Link)) state.State {
		s := routes(all...)
		l := state.Link{Name: "kilo-vxlan", Kind: state.VXLAN, MTU: 1370, Addresses: prefixes("10.4.0.1/32"),
			VXLAN: &state.VXLANConfig{ID: 77, Port: 8473, Device: "eth0", Local: netip.MustParseAddr("10.0.0.1")}}
		change(&l)
		s.Links = []state.Link{l}
		return s
	}
	was := vxlan(func(*state.Link) {})
	const again = "set route table 1107 10.1.0.0/24 dev kilo-vxlan\nset route table 1107 fd00:1::/64 dev kilo-vxlan metric 1024\n"
	expect(t, was, vxlan(func(l *state.Link) { l.VXLAN.ID = 78 }),
		"delete link kilo-vxlan\nset link kilo-vxlan vxlan mtu 1370 addr 10.4.0.1/32 vxlan id 78 port 8473 dev eth0 local 10.0.0.1\n"+again)
	expect(t, vxlan(func(l *state.Link) { l.Kind = "veth"; l.VXLAN = nil }), was,
		"delete link kilo-vxlan\nset link kilo-vxlan vxlan mtu 1370 addr 10.4.0.1/32 vxlan id 77 port 8473 dev eth0 local 10.0.0.1\n"+again)
	// The peers of a link that was another thing are all new.
	veth := tunnel()
	veth.Links[0].Kind, veth.Links[0].Tunnel = "veth", nil
	expect(t, veth, tunnel(peer("w1", "203.0.113.9:51820")), `
delete link kilo0
set link kilo0 wireguard mtu 1420 addr 10.4.0.1/32 tunnel key AAAA…AAA= port 51820
set peer w1 (dzEA…AAA=) on kilo0 create endpoint 203.0.113.9:51820
`)
	// With the last IPv4 address, IPv4 routes go.
	expect(t, was, vxlan(func(l *state.Link) { l.Addresses = nil }),
		"set link kilo-vxlan vxlan mtu 1370 vxlan id 77 port 8473 dev eth0 local 10.0.0.1\nset route table 1107 10.1.0.0/24 dev kilo-vxlan\n")
	// A route that is not wanted any more and vanishes needs no deletion.
	less := vxlan(func(l *state.Link) { l.VXLAN.ID = 78 })
	less.Routes = less.Routes[1:]
	if got := changes(was, less); strings.Contains(got, "delete route") {
		t.Errorf("deleted although gone:\n%s", got)
	}
	// An IPv6 route's MTU follows the link's.
	mtu := func(link int, texts ...string) state.State {
		s := tunnel()
		s.Links[0].MTU = link
		s.Routes = routes(texts...).Routes
		return s
	}
	const link1380 = "set link kilo0 wireguard mtu 1380 addr 10.4.0.1/32 tunnel key AAAA…AAA= port 51820\n"
	expect(t, mtu(1420, "fd00:1::/64 dev kilo0 mtu 1300"), mtu(1380, "fd00:1::/64 dev kilo0 mtu 1300"), link1380)
	expect(t, mtu(1420, "fd00:1::/64 dev kilo0 mtu 1420"), mtu(1380, "fd00:1::/64 dev kilo0 mtu 1380"), link1380)
	expect(t, mtu(1420, "fd00:1::/64 dev kilo0 mtu 1420"), mtu(1380, "fd00:1::/64 dev kilo0 mtu 1420"),
		link1380+"set route table 1107 fd00:1::/64 dev kilo0 metric 1024 mtu 1420\n")
	expect(t, mtu(1300, "fd00:1::/64 dev kilo0 mtu 1300"), mtu(1380, "fd00:1::/64 dev kilo0 mtu 1300"),
		link1380+"set route table 1107 fd00:1::/64 dev kilo0 metric 1024 mtu 1300\n")
	expect(t, mtu(1420, "10.1.0.0/24 dev kilo0 mtu 1420"), mtu(1380, "10.1.0.0/24 dev kilo0 mtu 1420"), link1380)
}

// A device whose configuration could not be read may hold peers that are alive.
func TestEndpointsStayWhereTheDeviceCouldNotBeRead(t *testing.T) {
	blind := tunnel()
	blind.Links[0].Tunnel = nil
	for _, c := range state.Diff(blind, tunnel(peer("w1", "203.0.113.9:51820"))) {
		if c, ok := c.(state.SetPeer); ok && c.SetEndpoint {
			t.Errorf("%s", c)
		}
	}
	if got := changes(state.State{}, tunnel(peer("w1", "203.0.113.9:51820"))); !strings.Contains(got, "endpoint") {
		t.Errorf("a new device's peer gets no endpoint:\n%s", got)
	}
}

func TestMetricZeroOfIPv6Is1024(t *testing.T) {
	a, b := routes("fd00:9::/64 dev kilo0"), routes("fd00:9::/64 dev kilo0")
	b.Routes[0].Metric = 1024
	expect(t, a, b, "")
	expect(t, b, a, "")
}
