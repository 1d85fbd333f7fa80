package state_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// large is a gateway in a cluster of that many nodes, 50 to a location, as a
// planner lists it: unicast routes, then unreachables, peers by location. Each
// node has a pod prefix and an address, each location a WireGuard address.
func large(nodes int) state.State {
	const perLocation = 50
	source := netip.MustParseAddr("10.0.0.1")
	tunnel := &state.Tunnel{Key: model.Key{1}, Port: 51820, Mark: state.Mark}
	var remote []netip.Prefix
	for l := range nodes / perLocation {
		p := state.Peer{
			Name: fmt.Sprintf("node/n%d", l), Key: model.Key{byte(l * 37), byte(l), 9},
			Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(l >> 8), byte(l)}), 51820),
		}
		for n := range perLocation {
			i := l*perLocation + n
			p.AllowedIPs = append(p.AllowedIPs,
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + byte(i>>8), byte(i), 0}), 24),
				netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>12), byte(i >> 8), byte(i)}), 32))
		}
		p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 4, byte(l >> 8), byte(l)}), 32))
		slices.SortFunc(p.AllowedIPs, netip.Prefix.Compare)
		tunnel.Peers = append(tunnel.Peers, p)
		remote = append(remote, p.AllowedIPs...)
	}
	slices.SortFunc(remote, netip.Prefix.Compare)
	s := gateway()
	s.Links[0].Tunnel = tunnel
	s.Routes = nil
	for _, dst := range remote {
		s.Routes = append(s.Routes, state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unicast, Device: "kilo0", Source: source, MTU: 1420})
	}
	for _, dst := range remote {
		s.Routes = append(s.Routes, state.Route{Table: state.TableOverlay, Dst: dst, Type: state.Unreachable, Metric: state.MetricLast})
	}
	s.Filter.Sets[0].Elements = remote
	return s
}

func BenchmarkDiff(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		wanted := large(nodes)
		// The kernel lists a route's metrics together, and has strings of its own.
		observed := large(nodes)
		observed.Normalize()
		changed := large(nodes)
		changed.Routes[0].MTU = 1380
		changed.Links[0].Tunnel.Peers[0].AllowedIPs = changed.Links[0].Tunnel.Peers[0].AllowedIPs[1:]
		normal := wanted
		normal.Normalize()
		for _, c := range []struct {
			name   string
			wanted state.State
			want   int // changes
		}{{"equal", wanted, 0}, {"normal", normal, 0}, {"one", changed, 2}} {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if got := len(state.Diff(observed, c.wanted)); got != c.want {
						b.Fatalf("%d changes, want %d", got, c.want)
					}
				}
			})
		}
	}
}

func BenchmarkString(b *testing.B) {
	s := large(1000)
	b.ReportAllocs()
	for b.Loop() {
		if len(s.String()) < 1000 {
			b.Fatal("no text")
		}
	}
}
