package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"

	"github.com/kilo-overlay/kilo/adapters/flannel"
)

// walker follows packets through the states of all nodes, as their kernels
// would: routes by longest prefix, WireGuard's allowed IPs on both ends, and
// strict reverse path filtering at every node, but for links that ask for less.
type walker struct {
	// loose is rp_filter 2 everywhere.
	loose    bool
	snapshot model.Snapshot
	states   map[string]state.State
}

// route is what our tables have for dst when it came in by an interface ("": by
// none).
func (w *walker) route(node, in string, dst netip.Addr) (best state.Route, ok bool) {
	back := slices.ContainsFunc(w.states[node].Rules, func(r state.Rule) bool {
		return r.Priority == state.PriorityReturn && in != "" && r.IIF == in
	})
	for _, table := range []int{state.TableReturn, state.TableOverlay} {
		if table == state.TableReturn && !back {
			continue
		}
		if best, ok = w.routeIn(node, table, dst); ok {
			return best, ok
		}
	}
	return best, false
}

func (w *walker) routeIn(node string, table int, dst netip.Addr) (best state.Route, ok bool) {
	for _, r := range w.states[node].Routes {
		if r.Table != table || !r.Dst.Contains(dst) {
			continue
		}
		if !ok || r.Dst.Bits() > best.Dst.Bits() || r.Dst.Bits() == best.Dst.Bits() && r.Metric < best.Metric {
			best, ok = r, true
		}
	}
	return best, ok
}

// way is the interface that a node sends to dst by what came in by another: "kilo0",
// "flannel.1", "eth0", "" for what is its own, or why it sends nothing.
func (w *walker) way(node, in string, dst netip.Addr) (dev string, err error) {
	if w.owner(dst) == node {
		return "", nil
	}
	if r, ok := w.route(node, in, dst); ok {
		if r.Type != state.Unicast {
			return "", fmt.Errorf("%s: %s", node, r)
		}
		return r.Device, nil
	}
	if w.snapshot.Node(w.owner(dst)).Location == w.snapshot.Node(node).Location {
		if w.isHost(dst) {
			return "eth0", nil
		}
		return "flannel.1", nil
	}
	return "", fmt.Errorf("%s has no route to %s", node, dst)
}

func (w *walker) owner(a netip.Addr) string {
	for _, n := range w.snapshot.Nodes {
		for _, p := range n.PodPrefixes {
			if p.Contains(a) {
				return n.Name
			}
		}
		if n.InternalIP(true) == a {
			return n.Name
		}
	}
	return ""
}

// isHost tells whether an address is a node's.
func (w *walker) isHost(a netip.Addr) bool {
	n := w.snapshot.Node(w.owner(a))
	return n != nil && n.InternalIP(true) == a
}

// link is a node's link of that name.
func (w *walker) link(node, name string) (l state.Link, ok bool) {
	for _, l := range w.states[node].Links {
		if l.Name == name {
			return l, true
		}
	}
	return state.Link{}, false
}

// linkWith is the link on which a node has another one as a peer.
func (w *walker) linkWith(node, peer string) string {
	for _, l := range w.states[node].Links {
		if l.Tunnel == nil {
			continue
		}
		for _, p := range l.Tunnel.Peers {
			if p.Name == "node/"+peer {
				return l.Name
			}
		}
	}
	return ""
}

func (w *walker) peerTo(node, link string, a netip.Addr) (peer string, ok bool) {
	bits := -1
	l, _ := w.link(node, link)
	if l.Tunnel == nil {
		return "", false
	}
	for _, p := range l.Tunnel.Peers {
		for _, allowed := range p.AllowedIPs {
			if allowed.Contains(a) && allowed.Bits() > bits {
				bits, peer, ok = allowed.Bits(), strings.TrimPrefix(p.Name, "node/"), true
			}
		}
	}
	return peer, ok
}

// walk returns the nodes that a packet passes, or why it does not arrive.
func (w *walker) walk(src, dst netip.Addr) (path []string, err error) {
	at := w.owner(src)
	path = []string{at}
	in := ""
	for range 8 {
		dev, err := w.way(at, in, dst)
		switch {
		case err != nil:
			return path, err
		case dev == "":
			return path, nil
		}
		came, next, loose := in, "", false
		in = dev
		if l, ok := w.link(at, dev); ok && l.Tunnel != nil {
			peer, ok := w.peerTo(at, dev, dst)
			if !ok {
				return path, fmt.Errorf("%s: no peer for %s on %s", at, dst, dev)
			}
			next, in = peer, w.linkWith(peer, at)
			if from, _ := w.peerTo(next, in, src); from != at {
				return path, fmt.Errorf("%s takes no %s from %s on %q (it is %q's there)", next, src, at, in, from)
			}
			l, _ := w.link(next, in)
			loose = l.Loose
		} else {
			next = w.owner(dst)
			if r, ok := w.route(at, came, dst); ok {
				next = w.owner(r.Via)
			}
		}
		// The kernel looks for the way back as if the answer came in where the packet
		// goes out.
		out, err := w.way(next, in, dst)
		if err != nil {
			return path, err
		}
		back, err := w.way(next, out, src)
		if err != nil || back != in && !loose && !w.loose {
			return path, fmt.Errorf("%s: rp_filter: %s came in on %s and would go back by %q (%v)", next, src, in, back, err)
		}
		at = next
		path = append(path, at)
	}
	return path, fmt.Errorf("a loop: %v", path)
}

// Whatever the mixture of granularities and of links that answer, every pod
// reaches every pod of another location and its answer comes back by the same
// nodes.
func TestEveryPodIsReachedAndAnswersTheSameWay(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := model.Snapshot{WireGuardSubnets: prefixes("10.4.0.0/16")}
		locations := 2 + r.IntN(3)
		mixed := r.IntN(2) == 0
		granularities := []model.Granularity{model.PerLocation, model.Cross, model.Full}
		everywhere := granularities[r.IntN(3)]
		for i := range 3 + r.IntN(8) {
			n := model.Node{Name: fmt.Sprintf("n%02d", i), UID: fmt.Sprint(i), Ready: true, Spoken: true, Key: keyOf(fmt.Sprintf("n%02d", i)), TunnelMTU: 1420,
				Location: fmt.Sprintf("l%d", i%locations), Granularity: everywhere,
				InternalIPs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i % locations), byte(i + 1)}), 24)},
				PodPrefixes:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
				WireGuardIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, byte(i + 1)})},
			}
			if mixed {
				n.Granularity = granularities[r.IntN(3)]
			}
			if i < locations || r.IntN(2) == 0 { // a gateway that can be reached in every location
				n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), Port: 51820}
			}
			s.Nodes = append(s.Nodes, n)
		}
		s.Sort()
		answers := answering(r, &s)
		w := &walker{snapshot: s, states: map[string]state.State{}}
		for _, n := range s.Nodes {
			f := factsOf(s, n.Name)
			f.Direct = map[string]bool{}
			for _, o := range s.Nodes {
				f.Direct[o.Name] = answers[[2]string{n.Name, o.Name}]
			}
			w.states[n.Name], _ = plan.Plan(s, f, flannel.New(flannel.Options{}))
		}
		for _, a := range s.Nodes {
			for _, b := range s.Nodes {
				if a.Name == b.Name {
					continue
				}
				src, dst := a.PodPrefixes[0].Addr().Next(), b.PodPrefixes[0].Addr().Next()
				there, err := w.walk(src, dst)
				if err != nil {
					t.Fatalf("seed %d: %s to %s: %v after %v", seed, a.Name, b.Name, err, there)
				}
				if a.Location != b.Location && meshed(a) && meshed(b) && answers[[2]string{a.Name, b.Name}] && everywhere == model.Cross && !mixed && allPublic(s) && len(there) != 2 {
					t.Fatalf("seed %d: %s to %s goes by %v though both say cross, can be reached and answer", seed, a.Name, b.Name, there)
				}
			}
		}
	}
}

// answering chooses which links answer, two of three, and has nodes publish the
// others as silent.
func answering(r *rand.Rand, s *model.Snapshot) map[[2]string]bool {
	answers := map[[2]string]bool{}
	for i, a := range s.Nodes {
		for _, b := range s.Nodes[i+1:] {
			yes := r.IntN(3) > 0
			answers[[2]string{a.Name, b.Name}], answers[[2]string{b.Name, a.Name}] = yes, yes
		}
	}
	for i := range s.Nodes {
		for _, o := range s.Nodes {
			if o.Name != s.Nodes[i].Name && !answers[[2]string{s.Nodes[i].Name, o.Name}] {
				s.Nodes[i].Silent = append(s.Nodes[i].Silent, o.Name)
			}
		}
	}
	return answers
}

func meshed(n model.Node) bool { return n.Granularity == model.Cross || n.Granularity == model.Full }

func allPublic(s model.Snapshot) bool {
	for _, n := range s.Nodes {
		if n.Endpoint.IsZero() {
			return false
		}
	}
	return true
}
