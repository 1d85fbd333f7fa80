package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

const clusters = 200

// randomCluster makes a cluster with everything that varies in life: locations
// of all sizes, nodes without agent or endpoint, several pod prefixes, both
// families, allowed-location-ips, Peers, and some that conflict.
func randomCluster(r *rand.Rand) model.Snapshot {
	s := model.Snapshot{WireGuardSubnets: prefixes("10.4.0.0/16"), ServicePrefixes: prefixes("10.96.0.0/12")}
	locations := 1 + r.IntN(5)
	for i := range 1 + r.IntN(14) {
		name := fmt.Sprintf("n%02d", i)
		l := r.IntN(locations)
		n := model.Node{
			Name: name, UID: fmt.Sprintf("uid-%04x", r.IntN(1<<16)), Ready: r.IntN(8) > 0, Spoken: r.IntN(10) > 0,
			Location: fmt.Sprintf("l%d", l), TunnelMTU: 1280 + 20*r.IntN(8),
			InternalIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(l), byte(i + 1)}), 24)},
			PodPrefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
			Leader:      r.IntN(6) == 0,
		}
		if r.IntN(5) == 0 {
			n.PodPrefixes = append(n.PodPrefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, byte(i), 0}), 24))
		}
		if r.IntN(4) == 0 {
			n.PodPrefixes = append(n.PodPrefixes, netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", i)))
			n.InternalIPs = append(n.InternalIPs, netip.MustParsePrefix(fmt.Sprintf("fd00:%x::%x/64", l, i+1)))
		}
		if r.IntN(12) == 0 && i > 0 {
			n.PodPrefixes[0] = s.Nodes[r.IntN(i)].PodPrefixes[0] // a duplicate
		}
		if n.Spoken {
			n.Key = keyOf(name)
			n.Epoch = uint64(r.IntN(3))
			n.WireGuardIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, byte(i + 1)})}
			if r.IntN(2) == 0 {
				n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), Port: 51820}
			}
			if r.IntN(6) == 0 {
				n.AllowedLocationIPs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(16 * r.IntN(16))}), 28)}
			}
		}
		s.Nodes = append(s.Nodes, n)
	}
	for i := range r.IntN(4) {
		s.Peers = append(s.Peers, model.Peer{Name: fmt.Sprintf("p%d", i), UID: fmt.Sprint(r.IntN(100)), Key: keyOf(fmt.Sprintf("p%d", i)), Seq: int64(r.IntN(3)),
			AllowedIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(r.IntN(3)), 0}), 24+r.IntN(2))}})
	}
	for range r.IntN(3) {
		host := s.Nodes[r.IntN(len(s.Nodes))]
		at := host.InternalIPs[0].Addr()
		if len(host.AllowedLocationIPs) > 0 {
			at = host.AllowedLocationIPs[0].Addr().Next() // a balancer's
		}
		s.APIServers = append(s.APIServers, netip.AddrPortFrom(at, 6443))
	}
	s.Sort()
	return s
}

// factsOf is what Flannel with VXLAN says on a node.
func factsOf(s model.Snapshot, self string) plan.Facts {
	n := s.Node(self)
	f := plan.Facts{Self: self, Interface: "kilo0", Port: 51820, Key: n.Key, TunnelMTU: n.TunnelMTU, AdapterKnown: true,
		Live:    map[string]bool{"l0": true, "l2": true, "l4": true},
		Adapter: adapter.Facts{CNI: "flannel", PodPrefixes: n.PodPrefixes, ClusterPrefixes: prefixes("10.244.0.0/16")}}
	for _, o := range s.Nodes {
		for _, p := range o.PodPrefixes {
			if o.Name != self {
				f.Adapter.NextHops = append(f.Adapter.NextHops, adapter.NextHop{Prefix: p, Via: p.Addr(), Device: "flannel.1", OnLink: true, MTU: 1450})
			}
		}
	}
	slices.SortFunc(f.Adapter.NextHops, func(a, b adapter.NextHop) int { return a.Prefix.Compare(b.Prefix) })
	return f
}

func eachCluster(t *testing.T, check func(t *testing.T, r *rand.Rand, s model.Snapshot)) {
	t.Helper()
	for seed := range uint64(clusters) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomCluster(r)
		if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { check(t, r, s) }) {
			return
		}
	}
}

func planOf(s model.Snapshot, self string) (state.State, plan.Report) {
	return plan.Plan(s, factsOf(s, self), flannel.New(flannel.Options{}))
}

func TestNodeOrderDoesNotMatter(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		self := s.Nodes[r.IntN(len(s.Nodes))].Name
		want, _ := planOf(s, self)
		shuffled := s
		shuffled.Nodes, shuffled.Peers = slices.Clone(s.Nodes), slices.Clone(s.Peers)
		r.Shuffle(len(shuffled.Nodes), func(i, j int) { shuffled.Nodes[i], shuffled.Nodes[j] = shuffled.Nodes[j], shuffled.Nodes[i] })
		shuffled.Sort()
		got, _ := planOf(shuffled, self)
		if d := state.Diff(want, got); len(d) > 0 {
			t.Errorf("plans differ: %v", d)
		}
	})
}

func TestAllNodesAgreeOnGateways(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		var first map[string]string
		for _, n := range s.Nodes {
			_, report := planOf(s, n.Name)
			got := map[string]string{}
			for _, l := range report.Locations {
				if l.Gateway != nil {
					got[l.Name] = l.Gateway.Name
				}
			}
			if first == nil {
				first = got
			}
			if !reflect.DeepEqual(first, got) {
				t.Errorf("%s sees %v, another %v", n.Name, got, first)
			}
		}
	})
}

func TestAllowedIPsNeverOverlap(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		for _, n := range s.Nodes {
			st, _ := planOf(s, n.Name)
			peers := st.Links[0].Tunnel.Peers
			for i, a := range peers {
				for _, b := range peers[i+1:] {
					for _, p := range a.AllowedIPs {
						for _, q := range b.AllowedIPs {
							if p == q || p.Overlaps(q) && !wider(s, p, q) {
								t.Errorf("on %s: %s of %s and %s of %s", n.Name, p, a.Name, q, b.Name)
							}
						}
					}
				}
			}
		}
	})
}

// wider tells whether the wider of two nested prefixes is one that may enclose
// others': a Peer's or an allowed-location-ips entry.
func wider(s model.Snapshot, p, q netip.Prefix) bool {
	if q.Bits() < p.Bits() {
		p = q
	}
	for _, peer := range s.Peers {
		if slices.Contains(peer.AllowedIPs, p) {
			return true
		}
	}
	for _, n := range s.Nodes {
		if slices.Contains(n.AllowedLocationIPs, p) {
			return true
		}
	}
	return false
}

// Every pod prefix and node address of every other location with a gateway
// lies in the allowed IPs of exactly one peer of a serving node, that of its
// location, unless it was refused by name.
func TestPodsOfOtherLocationsAreCoveredOnce(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		for _, self := range s.Nodes {
			st, report := planOf(s, self.Name)
			if report.Role != plan.Gateway {
				continue
			}
			gateways := map[string]string{}
			for _, l := range report.Locations {
				if l.Gateway != nil {
					gateways[l.Name] = "node/" + l.Gateway.Name
				}
			}
			for _, n := range s.Nodes {
				if n.Location == self.Location || !n.Spoken || gateways[n.Location] == "" {
					continue
				}
				for _, p := range n.PodPrefixes {
					var at []string
					for _, peer := range st.Links[0].Tunnel.Peers {
						if slices.Contains(peer.AllowedIPs, p) {
							at = append(at, peer.Name)
						}
					}
					if len(at) == 1 && at[0] == gateways[n.Location] {
						continue
					}
					if claimedTwice(s, p) {
						// Another node has the same prefix; whoever has it, it is at one peer at most.
						if len(at) <= 1 {
							continue
						}
					}
					t.Errorf("on %s: %s of %s is at %v, want %s", self.Name, p, n.Name, at, gateways[n.Location])
				}
			}
		}
	})
}

func claimedTwice(s model.Snapshot, p netip.Prefix) bool {
	n := 0
	for _, node := range s.Nodes {
		if slices.Contains(node.PodPrefixes, p) {
			n++
		}
	}
	return n > 1
}

// No route leads into the own location but those of the gateway's return
// table, and every route has something under it.
func TestNoRouteIntoOwnLocation(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		for _, self := range s.Nodes {
			st, report := planOf(s, self.Name)
			var own []netip.Prefix
			for _, n := range s.Nodes {
				if n.Location == self.Location {
					for _, p := range n.PodPrefixes {
						if !claimedTwice(s, p) {
							own = append(own, p)
						}
					}
					for _, p := range n.InternalIPs {
						own = append(own, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
					}
				}
			}
			standing := map[netip.Prefix]bool{}
			for _, route := range st.Routes {
				if route.Type != state.Unicast && route.Metric == state.MetricLast {
					standing[route.Dst] = true
				}
			}
			for _, route := range st.Routes {
				switch {
				case route.Table == state.TableReturn:
					if report.Role != plan.Gateway || !slices.Contains(own, route.Dst) {
						t.Errorf("on %s (%s): %v", self.Name, report.Role, route)
					}
				case route.Table != state.TableOverlay:
					t.Errorf("on %s: %v is in a foreign table", self.Name, route)
				case slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Overlaps(route.Dst) && route.Type != state.Throw }):
					t.Errorf("on %s: %v leads into the own location", self.Name, route)
				case route.Type == state.Unicast && !standing[route.Dst]:
					t.Errorf("on %s: nothing stands under %v", self.Name, route)
				}
			}
		}
	})
}

// The way to the API servers never depends on a tunnel that does not work, and
// nothing else falls through to main: not before a location is live, and not
// when the node's own device has gone, with the routes into it, and its agent.
func TestWhatFallsThrough(t *testing.T) {
	fell, held := 0, 0
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		for _, self := range s.Nodes {
			st, report := planOf(s, self.Name)
			live := factsOf(s, self.Name).Live
			hosts := slices.ContainsFunc(s.APIServers, func(a netip.AddrPort) bool { return a.Addr() == self.InternalIPs[0].Addr() })
			isServer := func(a netip.Addr) bool {
				return slices.ContainsFunc(s.APIServers, func(s netip.AddrPort) bool { return s.Addr() == a })
			}
			for _, gone := range []bool{false, true} {
				routes := slices.DeleteFunc(slices.Clone(st.Routes), func(o state.Route) bool { return gone && o.Device == "kilo0" })
				check := func(n *model.Node, a netip.Addr, mends bool) {
					t.Helper()
					// A member's way ends with its gateway, which its own agent notices.
					falls := mends && (!live[n.Location] || !n.Spoken || gone && report.Role == plan.Gateway)
					found := lookUp(routes, a)
					switch fallen := found == nil || found.Type == state.Throw; {
					case falls && !fallen:
						t.Errorf("on %s (%s, device gone: %t): %s of %s, %s: %v", self.Name, report.Role, gone, a, n.Name, n.Location, found)
					case !falls && fallen:
						t.Errorf("on %s (%s, device gone: %t): %s of %s, %s, falls through: %v", self.Name, report.Role, gone, a, n.Name, n.Location, found)
					case falls:
						fell++
					default:
						held++
					}
				}
				for i := range s.Nodes {
					n := &s.Nodes[i]
					if n.Location == self.Location {
						continue
					}
					check(n, n.InternalIPs[0].Addr(), hosts || isServer(n.InternalIPs[0].Addr()))
					if !claimedTwice(s, n.PodPrefixes[0]) {
						check(n, n.PodPrefixes[0].Addr().Next(), false)
					}
				}
			}
		}
	})
	if fell < 100 || held < 100 {
		t.Errorf("%d addresses fell through and %d did not: the clusters are too dull", fell, held)
	}
}

// lookUp returns the route of table 1107 that the kernel would take, or nil.
func lookUp(routes []state.Route, a netip.Addr) *state.Route {
	var best *state.Route
	for i := range routes {
		o := &routes[i]
		if o.Table != state.TableOverlay || !o.Dst.Contains(a) {
			continue
		}
		if best == nil || o.Dst.Bits() > best.Dst.Bits() || o.Dst == best.Dst && o.Metric < best.Metric {
			best = o
		}
	}
	return best
}

// A node that joins another location changes nothing but what is its own: its
// prefixes, and on its location's gateway nothing at all of others.
func TestJoiningElsewhereChangesOnlyItsOwn(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		self := s.Nodes[r.IntN(len(s.Nodes))]
		joined := model.Node{Name: "zz-new", UID: "uid-zz", Ready: true, Spoken: true, Key: keyOf("zz-new"), Location: self.Location + "-else", TunnelMTU: 1420,
			InternalIPs: prefixes("172.31.0.1/24"), PodPrefixes: prefixes("10.250.0.0/24"), WireGuardIPs: []netip.Addr{netip.MustParseAddr("10.4.9.9")}}
		after := s
		after.Nodes = append(slices.Clone(s.Nodes), joined)
		after.Sort()
		before, _ := planOf(s, self.Name)
		facts := factsOf(s, self.Name)
		got, _ := plan.Plan(after, facts, flannel.New(flannel.Options{}))
		for _, c := range state.Diff(before, got) {
			switch c := c.(type) {
			case state.SetRoute:
				if !isOf(joined, c.Route.Dst) {
					t.Errorf("on %s: %s", self.Name, c)
				}
			case state.SetPeer:
				if c.Peer.Key != joined.Key {
					t.Errorf("on %s: %s", self.Name, c)
				}
			case state.SetFilter:
			default:
				t.Errorf("on %s: %s", self.Name, c)
			}
		}
	})
}

func isOf(n model.Node, p netip.Prefix) bool {
	return slices.Contains(n.PodPrefixes, p) || p.IsSingleIP() &&
		(p.Addr() == n.InternalIPs[0].Addr() || slices.Contains(n.WireGuardIPs, p.Addr()))
}

// Families never mix in one route.
func TestFamiliesNeverMix(t *testing.T) {
	eachCluster(t, func(t *testing.T, r *rand.Rand, s model.Snapshot) {
		for _, self := range s.Nodes {
			st, _ := planOf(s, self.Name)
			for _, route := range st.Routes {
				v4 := route.Dst.Addr().Is4()
				if route.Via.IsValid() && route.Via.Is4() != v4 || route.Source.IsValid() && route.Source.Is4() != v4 {
					t.Errorf("on %s: %v", self.Name, route)
				}
			}
		}
	})
}
