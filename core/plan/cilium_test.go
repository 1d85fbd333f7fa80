package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"

	"github.com/kilo-overlay/kilo/adapters/cilium"
)

// ciliumFacts is what the adapter finds on a node of a LAN with 1500 bytes.
func ciliumFacts(tunnel bool) adapter.Facts {
	f := adapter.Facts{CNI: "cilium", Mode: "native", Unnumbered: true, TunnelMarks: []uint32{cilium.FromHost}, Device: "eth0", DeviceMTU: 1500, PodMTU: 1420, ClusterPrefixes: prefixes("10.244.0.0/16")}
	if tunnel {
		f.Mode, f.NodesOnly, f.PodMTU, f.PodOverhead, f.ClusterPrefixes = "tunnel vxlan", true, 1370, 50, nil
	}
	return f
}

// ciliumWorld follows packets through all nodes' states on Cilium: by the rules
// in their order, the neighbours and forwarding entries of kilo-vxlan, the allowed
// IPs of both ends of a tunnel and the guard, with strict reverse path filtering
// as the kernel does it: the reverse lookup pretends that the answer came in by
// the device that the packet goes out of.
type ciliumWorld struct {
	snapshot model.Snapshot
	states   map[string]state.State
	tunnel   bool // pods travel inside Cilium's tunnel and so do not show
	// cloud tells that a LAN drops what is not from one of its own nodes to another.
	cloud bool
}

func (w *ciliumWorld) owner(a netip.Addr) *model.Node {
	for i := range w.snapshot.Nodes {
		n := &w.snapshot.Nodes[i]
		if n.InternalIP(true) == a || slices.Contains(n.WireGuardIPs, a) || slices.ContainsFunc(n.PodPrefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return n
		}
	}
	return nil
}

// lookup is the route of a packet for dst that came in on iif; "" for the node's own.
func (w *ciliumWorld) lookup(at *model.Node, iif string, dst netip.Addr) (state.Route, error) {
	s := w.states[at.Name]
	rules := slices.Clone(s.Rules)
	slices.SortStableFunc(rules, func(a, b state.Rule) int { return a.Priority - b.Priority })
	for _, r := range rules {
		if r.V6 || r.Proto != "" || r.IIF != "" && r.IIF != iif {
			continue
		}
		best, found := state.Route{}, false
		for _, route := range s.Routes {
			if route.Table == r.Table && route.Dst.Contains(dst) && (!found || route.Dst.Bits() > best.Dst.Bits() || route.Dst.Bits() == best.Dst.Bits() && route.Metric < best.Metric) {
				best, found = route, true
			}
		}
		switch {
		case !found || best.Type == state.Throw:
			continue
		case best.Type != state.Unicast:
			return best, fmt.Errorf("%s: %s", at.Name, best)
		}
		return best, nil
	}
	// main: the LAN, and Cilium's direct routes within a subnet.
	n := w.owner(dst)
	if n == nil || n.Location != at.Location {
		return state.Route{}, fmt.Errorf("%s has no route to %s", at.Name, dst)
	}
	if n.InternalIP(true) != dst && !at.InternalIPs[0].Contains(n.InternalIP(true)) {
		return state.Route{}, fmt.Errorf("%s: Cilium has no route to %s, in another subnet", at.Name, dst)
	}
	return state.Route{Device: "eth0", Via: n.InternalIP(true)}, nil
}

// out is the device that a packet leaves by, "lo" where it has arrived.
func (w *ciliumWorld) out(at *model.Node, iif string, dst netip.Addr) (string, state.Route, error) {
	if w.owner(dst) == at {
		return "lo", state.Route{}, nil
	}
	r, err := w.lookup(at, iif, dst)
	return r.Device, r, err
}

// across is the node that a frame for a next hop arrives at.
func (w *ciliumWorld) across(at *model.Node, via netip.Addr) (*model.Node, error) {
	vxlan := func(n *model.Node) *state.VXLANConfig {
		for _, l := range w.states[n.Name].Links {
			if l.VXLAN != nil {
				return l.VXLAN
			}
		}
		return nil
	}
	mine := vxlan(at)
	if mine == nil {
		return nil, fmt.Errorf("%s has no kilo-vxlan", at.Name)
	}
	for _, r := range mine.Remotes {
		if r.Inner != via {
			continue
		}
		n := w.owner(r.Outer)
		if n == nil || n.Location != at.Location {
			return nil, fmt.Errorf("%s: %s is no node of the location", at.Name, r)
		}
		theirs := vxlan(n)
		if theirs == nil || theirs.MAC != r.MAC || theirs.Local != r.Outer || theirs.ID != mine.ID || theirs.Port != mine.Port || mine.Device != "eth0" {
			return nil, fmt.Errorf("%s: %s does not fit %s's %v", at.Name, r, n.Name, theirs)
		}
		return n, nil
	}
	return nil, fmt.Errorf("%s: kilo-vxlan knows no %s", at.Name, via)
}

// guarded tells whether the guard lets a packet for another location leave.
func (w *ciliumWorld) guarded(at *model.Node, dst netip.Addr, r state.Route) error {
	f := w.states[at.Name].Filter
	remote := slices.ContainsFunc(f.Sets, func(s state.Set) bool {
		return s.Name == "remote4" && slices.ContainsFunc(s.Elements, func(p netip.Prefix) bool { return p.Contains(dst) })
	})
	if !remote {
		return nil
	}
	for _, c := range f.Chains {
		if c.Name != plan.GuardChain {
			continue
		}
		for _, rule := range c.Rules {
			_, accepts := rule.Action.(state.Accept)
			fits := accepts && !slices.ContainsFunc(rule.Matches, func(m state.Match) bool {
				switch m := m.(type) {
				case state.OutInterface:
					return m.Name != r.Device
				case state.NextHop:
					return m.Addr != r.Via
				}
				return true // another kind of packet
			})
			if fits {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: the guard lets nothing for %s out by %s", at.Name, dst, r)
}

func (w *ciliumWorld) walk(src, dst netip.Addr) (path []string, err error) {
	at, iif := w.owner(src), "lo"
	path = []string{at.Name}
	for range 8 {
		dev, route, err := w.out(at, iif, dst)
		switch {
		case err != nil:
			return path, err
		case dev == "lo":
			return path, nil
		}
		if err := w.guarded(at, dst, route); err != nil {
			return path, err
		}
		var next *model.Node
		switch dev {
		case "kilo0":
			k := &walker{snapshot: w.snapshot, states: w.states}
			peer, ok := k.peerTo(at.Name, dev, dst)
			if !ok {
				return path, fmt.Errorf("%s: no peer for %s", at.Name, dst)
			}
			next = w.snapshot.Node(peer)
			if from, _ := k.peerTo(peer, dev, src); from != at.Name {
				return path, fmt.Errorf("%s takes no %s from %s (it is %q's there)", peer, src, at.Name, from)
			}
		case state.VXLANLink:
			if next, err = w.across(at, route.Via); err != nil {
				return path, err
			}
		case "eth0":
			if !at.InternalIPs[0].Contains(route.Via) && route.Via != dst {
				return path, fmt.Errorf("%s: %s is not on its LAN", at.Name, route.Via)
			}
			next = w.owner(route.Via)
			native := !w.tunnel && w.owner(src).Location == w.owner(dst).Location
			if w.cloud && !native && (w.owner(src).InternalIP(true) != src || w.owner(dst).InternalIP(true) != dst || w.owner(src).Location != w.owner(dst).Location) {
				return path, fmt.Errorf("%s: a cloud's LAN drops %s → %s", at.Name, src, dst)
			}
		default:
			return path, fmt.Errorf("%s: to %s by %q", at.Name, dst, dev)
		}
		// Where the packet goes from there decides how its source is looked up.
		onward, _, err := w.out(next, dev, dst)
		if err != nil {
			return path, err
		}
		back, _, err := w.out(next, onward, src)
		if err != nil || back != dev {
			return path, fmt.Errorf("%s: rp_filter: %s came in on %s and would go back by %q (%v)", next.Name, src, dev, back, err)
		}
		at, iif = next, dev
		path = append(path, at.Name)
	}
	return path, fmt.Errorf("a loop: %v", path)
}

// Whatever the mode, the encapsulation, the granularities and the links that
// answer: with strict rp_filter everywhere, every node reaches every node of
// another location, and in native mode every pod every pod, and nothing passes a
// LAN of a cloud but what is from one of its nodes to another.
func TestCiliumEverybodyIsReached(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 11))
		encapsulation := []cilium.Encapsulation{cilium.Always, cilium.CrossSubnet, cilium.Never}[seed%3]
		tunnel := seed/3%2 == 0
		s := model.Snapshot{WireGuardSubnets: prefixes("10.4.0.0/16")}
		locations := 2 + r.IntN(3)
		granularities := []model.Granularity{model.PerLocation, model.Cross, model.Full}
		everywhere, mixed := granularities[r.IntN(3)], r.IntN(2) == 0
		for i := range 3 + r.IntN(9) {
			at, subnet := i%locations, 0
			if encapsulation != cilium.Never {
				subnet = r.IntN(2)
			}
			n := model.Node{Name: fmt.Sprintf("n%02d", i), UID: fmt.Sprint(i), Ready: true, Spoken: true, Key: keyOf(fmt.Sprintf("n%02d", i)), TunnelMTU: 1420,
				Location: fmt.Sprintf("l%d", at), Granularity: everywhere, NodesOnly: tunnel,
				InternalIPs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(2*at + subnet), byte(i + 1)}), 24)},
				PodPrefixes:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
				WireGuardIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, byte(i + 1)})},
			}
			if r.IntN(3) == 0 { // cluster-pool may give several
				n.PodPrefixes = append(n.PodPrefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(100 + i), 0}), 24))
			}
			if mixed {
				n.Granularity = granularities[r.IntN(3)]
			}
			if i < locations || r.IntN(2) == 0 {
				n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), Port: 51820}
			}
			s.Nodes = append(s.Nodes, n)
		}
		s.Sort()
		answers := answering(r, &s)
		w := &ciliumWorld{snapshot: s, states: map[string]state.State{}, tunnel: tunnel, cloud: encapsulation == cilium.Always}
		a := cilium.New(cilium.Options{Encapsulation: encapsulation})
		for _, n := range s.Nodes {
			f := plan.Facts{Self: n.Name, Key: n.Key, Interface: "kilo0", Port: 51820, TunnelMTU: 1420, AdapterKnown: true, Adapter: ciliumFacts(tunnel),
				LAN: adapter.LAN{Device: "eth0", MTU: 1500}, Connected: []netip.Prefix{n.InternalIPs[0].Masked()}, Direct: map[string]bool{}}
			for _, o := range s.Nodes {
				f.Direct[o.Name] = answers[[2]string{n.Name, o.Name}]
			}
			var report plan.Report
			w.states[n.Name], report = plan.Plan(s, f, a)
			for _, warning := range report.Warnings {
				if strings.HasPrefix(warning.Kind, "Adapter") {
					t.Fatalf("seed %d (%s, tunnel %t): %s", seed, encapsulation, tunnel, warning)
				}
			}
			for _, l := range w.states[n.Name].Links {
				if l.Name != state.LoopbackLink && len(l.Addresses) > 0 {
					t.Fatalf("seed %d: %s has the address %s", seed, l.Name, l.Addresses[0])
				}
			}
		}
		for _, a := range s.Nodes {
			for _, b := range s.Nodes {
				if a.Location == b.Location {
					continue // Cilium's own business
				}
				pairs := [][2]netip.Addr{{a.InternalIP(true), b.InternalIP(true)}}
				if !tunnel {
					for _, p := range b.PodPrefixes {
						pod := a.PodPrefixes[0].Addr().Next()
						pairs = append(pairs, [2]netip.Addr{pod, p.Addr().Next()}, [2]netip.Addr{a.InternalIP(true), p.Addr().Next()}, [2]netip.Addr{pod, b.InternalIP(true)})
					}
				}
				for _, pair := range pairs {
					if path, err := w.walk(pair[0], pair[1]); err != nil {
						t.Fatalf("seed %d (%s, tunnel %t): %s (%s) to %s (%s): %v after %v", seed, encapsulation, tunnel, a.Name, pair[0], b.Name, pair[1], err, path)
					}
				}
			}
		}
	}
}
