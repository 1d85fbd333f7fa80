package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// armed is a random cluster whose nodes hold the slots that they claim.
func armed(r *rand.Rand) model.Snapshot {
	s := model.Snapshot{WireGuardSubnets: prefixes("10.4.0.0/16")}
	locations := 2 + r.IntN(3)
	granularity := []model.Granularity{model.PerLocation, model.PerLocation, model.Cross, model.Full}[r.IntN(4)]
	for i := range 3 + r.IntN(9) {
		n := model.Node{Name: fmt.Sprintf("n%02d", i), UID: fmt.Sprint(i), Ready: true, Spoken: true, Key: keyOf(fmt.Sprintf("n%02d", i)), TunnelMTU: 1420,
			Location: fmt.Sprintf("l%d", r.IntN(locations)), Granularity: granularity,
			PodPrefixes:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
			WireGuardIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, byte(i + 1)})},
		}
		n.InternalIPs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, n.Location[1], byte(i + 1)}), 24)}
		if r.IntN(3) > 0 {
			n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), Port: 51820}
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.Sort()
	for i := range s.Nodes {
		s.Nodes[i].Slot = plan.NewMesh(s).Slot(s.Nodes[i].Name, 2)
	}
	for _, l := range plan.Locations(s) {
		l.Gateway.Epoch = 1
	}
	return s
}

func statesOf(s model.Snapshot) map[string]state.State {
	states := map[string]state.State{}
	for _, n := range s.Nodes {
		f := factsOf(s, n.Name)
		f.Direct = map[string]bool{}
		for _, o := range s.Nodes {
			f.Direct[o.Name] = true
		}
		states[n.Name], _ = plan.Plan(s, f, flannel.New(flannel.Options{}))
	}
	return states
}

// Who holds a slot keeps it, no two nodes of a location have the same, and there
// are as many as were asked for where there are as many nodes.
func TestSlots(t *testing.T) {
	for seed := range uint64(300) {
		s := armed(rand.New(rand.NewPCG(seed, 11)))
		for _, l := range plan.Locations(s) {
			held := map[int]string{}
			for _, n := range l.Nodes {
				if n.Slot == 0 {
					continue
				}
				if o := held[n.Slot]; o != "" {
					t.Errorf("seed %d: %s and %s both hold slot %d", seed, o, n.Name, n.Slot)
				}
				held[n.Slot] = n.Name
			}
			if len(held) != min(2, len(l.Nodes)) || l.Gateway.Slot == 0 {
				t.Errorf("seed %d: location %s of %d nodes has slots %v", seed, l.Name, len(l.Nodes), held)
			}
		}
		for _, n := range s.Nodes {
			if again := plan.NewMesh(s).Slot(n.Name, 2); again != n.Slot {
				t.Errorf("seed %d: %s has slot %d and claims %d", seed, n.Name, n.Slot, again)
			}
		}
	}
}

// While a location's gateway changes, every pod reaches every other one, whoever
// already knows of the change: the new gateway first, then the others in any order. (With granularities cross and
// full that holds before and after; and with strict reverse path filters the
// pods of the two gateways themselves do not until both know: what comes by way of
// the other one comes by the host CNI's device, and would go back by the tunnel.
// TestNothingIsLostWhileAGatewayHandsOver is about those.)
func TestNothingIsLostWhileAGatewayChanges(t *testing.T) {
	changes := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 13))
		before := armed(r)
		for _, l := range plan.Locations(before) {
			next := standsBy(l)
			if next == nil {
				continue
			}
			changes++
			after := before
			after.Nodes = append([]model.Node(nil), before.Nodes...)
			after.Node(next.Name).Epoch = l.Gateway.Epoch + 1
			w := &walker{snapshot: before, states: statesOf(before)}
			everyPod(t, w, fmt.Sprintf("seed %d before %s serves", seed, next.Name))
			learned := statesOf(after)
			order := []string{next.Name}
			for _, i := range r.Perm(len(before.Nodes)) {
				if name := before.Nodes[i].Name; name != next.Name {
					order = append(order, name)
				}
			}
			for i, name := range order {
				w.states[name] = learned[name]
				if before.Nodes[0].Granularity != model.PerLocation && i < len(order)-1 {
					// A node with links of its own takes from each peer what that one
					// sends now, not what it may hand on for others next.
					continue
				}
				w.loose = i < len(order)-1
				everyPod(t, w, fmt.Sprintf("seed %d: %s serves, known to %v", seed, next.Name, order[:i+1]))
			}
		}
	}
	if changes < 100 {
		t.Errorf("only %d changes were tried", changes)
	}
}

// A gateway that works hands over: the other locations send the new one its own
// first, then it serves, then its location follows, then the others. With strict
// reverse path filters everywhere but on the mesh's own links nothing is lost, in
// whatever order the nodes of one stage hear of it.
func TestNothingIsLostWhileAGatewayHandsOver(t *testing.T) {
	changes := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 17))
		before := armed(r)
		if before.Nodes[0].Granularity != model.PerLocation {
			continue
		}
		for _, l := range plan.Locations(before) {
			next := standsBy(l)
			if next == nil {
				continue
			}
			changes++
			with := func(change func(*model.Node)) map[string]state.State {
				s := before
				s.Nodes = append([]model.Node(nil), before.Nodes...)
				change(s.Node(next.Name))
				return statesOf(s)
			}
			ahead := with(func(n *model.Node) { n.Next = true })
			after := with(func(n *model.Node) { n.Epoch = l.Gateway.Epoch + 1 })
			w := &walker{snapshot: before, states: statesOf(before)}
			step := func(stage string, states map[string]state.State, which func(model.Node) bool) {
				for _, i := range r.Perm(len(before.Nodes)) {
					if n := before.Nodes[i]; which(n) {
						w.states[n.Name] = states[n.Name]
						when := fmt.Sprintf("seed %d: %s hands over to %s: %s, %s", seed, l.Gateway.Name, next.Name, stage, n.Name)
						everyPod(t, w, when)
						everyNode(t, w, when)
					}
				}
			}
			elsewhere := func(n model.Node) bool { return n.Location != l.Name }
			step("the others prepare", ahead, elsewhere)
			step("it serves", after, func(n model.Node) bool { return n.Name == next.Name })
			step("its members follow", after, func(n model.Node) bool { return !elsewhere(n) && n.Name != next.Name && n.Name != l.Gateway.Name })
			step("the old one follows", after, func(n model.Node) bool { return n.Name == l.Gateway.Name })
			step("the others follow", after, elsewhere)
		}
	}
	if changes < 100 {
		t.Errorf("only %d changes were tried", changes)
	}
}

func everyPod(t *testing.T, w *walker, when string) {
	t.Helper()
	for _, a := range w.snapshot.Nodes {
		for _, b := range w.snapshot.Nodes {
			if a.Name == b.Name {
				continue
			}
			if path, err := w.walk(a.PodPrefixes[0].Addr().Next(), b.PodPrefixes[0].Addr().Next()); err != nil {
				t.Fatalf("%s: %s to %s: %v after %v", when, a.Name, b.Name, err, path)
			}
		}
	}
}

// everyNode is everyPod for what nodes themselves say to other locations' nodes and
// pods.
func everyNode(t *testing.T, w *walker, when string) {
	t.Helper()
	for _, a := range w.snapshot.Nodes {
		for _, b := range w.snapshot.Nodes {
			if a.Location == b.Location {
				continue
			}
			from, to, pod := a.InternalIP(true), b.InternalIP(true), b.PodPrefixes[0].Addr().Next()
			for _, way := range [][2]netip.Addr{{from, to}, {from, pod}, {pod, from}} {
				if path, err := w.walk(way[0], way[1]); err != nil {
					t.Fatalf("%s: %s to %s: %v after %v", when, way[0], way[1], err, path)
				}
			}
		}
	}
}

// standsBy is a node of the location that is armed and does not serve; nil: there is none.
func standsBy(l plan.Location) (found *model.Node) {
	for _, n := range l.Armed {
		if n != nil && n != l.Gateway {
			found = n
		}
	}
	return found
}
