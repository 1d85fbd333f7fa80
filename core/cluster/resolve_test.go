package cluster_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

// seen makes the claims of a process that saw the nodes in that order, or all
// in its first list.
func seen(inOrder bool, nodes ...model.Node) cluster.Claims {
	var c cluster.Claims
	for i, n := range nodes {
		at := cluster.Listed
		if inOrder {
			at += cluster.Moment(i)
		}
		c.Observe(n, at)
	}
	return c
}

func TestNodesThatDoNotClash(t *testing.T) {
	s := f1()
	got, warnings := cluster.Resolve(seen(false, s.Nodes...), s)
	if diff := cmp.Diff(s, got, byValue); diff != "" || len(warnings) != 0 {
		t.Errorf("warnings %v, changed:\n%s", warnings, diff)
	}
}

// What two nodes claim stays with the one that was seen with it first, and
// with the lower UID where both were there from the start.
func TestNodesThatClash(t *testing.T) {
	for _, c := range []struct {
		name string
		kind string
		// take makes e2 claim what w1 has, or the like.
		take func(e2, w1 *model.Node)
		// has tells whether a node still has the thing in question.
		has func(n *model.Node) bool
	}{
		{"key", cluster.DuplicateKey,
			func(e2, w1 *model.Node) { e2.Key = w1.Key },
			func(n *model.Node) bool { return !n.Key.IsZero() && n.Spoken }},
		{"WireGuard address", cluster.DuplicateWireGuardIP,
			func(e2, w1 *model.Node) { e2.WireGuardIPs = w1.WireGuardIPs },
			func(n *model.Node) bool { return len(n.WireGuardIPs) == 1 }},
		{"internal address", cluster.DuplicateInternalIP,
			func(e2, w1 *model.Node) { e2.InternalIPs = prefixes("192.168.9.9/32") },
			func(n *model.Node) bool { return len(n.InternalIPs) == 1 }},
		{"pod prefix", cluster.OverlappingPodPrefix,
			func(e2, w1 *model.Node) { e2.PodPrefixes = w1.PodPrefixes },
			func(n *model.Node) bool { return len(n.PodPrefixes) == 1 }},
		{"pod prefix inside", cluster.OverlappingPodPrefix,
			func(e2, w1 *model.Node) { e2.PodPrefixes = prefixes("10.244.9.128/25") },
			func(n *model.Node) bool { return len(n.PodPrefixes) == 1 }},
		{"pod prefix around", cluster.OverlappingPodPrefix,
			func(e2, w1 *model.Node) { e2.PodPrefixes = prefixes("10.244.8.0/22") },
			func(n *model.Node) bool { return len(n.PodPrefixes) == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := f1()
			e2, w1 := s.Node("e2"), s.Node("w1")
			c.take(e2, w1)
			before := f1()
			c.take(before.Node("e2"), before.Node("w1"))
			for _, order := range []struct {
				name   string
				claims cluster.Claims
				winner string
			}{
				{"e2 first", seen(true, *e2, *w1), "e2"},
				{"w1 first", seen(true, *w1, *e2), "w1"},
				{"together", seen(false, *w1, *e2), "e2"}, // uid-e2 < uid-w1
				{"never observed", cluster.Claims{}, "e2"},
			} {
				got, warnings := cluster.Resolve(order.claims, s)
				loser := map[string]string{"e2": "w1", "w1": "e2"}[order.winner]
				if !c.has(got.Node(order.winner)) || c.has(got.Node(loser)) {
					t.Errorf("%s: %s should keep it and %s not: %+v, %+v", order.name, order.winner, loser, *got.Node(order.winner), *got.Node(loser))
				}
				if len(warnings) != 1 || warnings[0].Kind != c.kind {
					t.Errorf("%s: warnings %v, want one %s", order.name, warnings, c.kind)
				}
				wantSays(t, warnings, "node/"+loser, "node "+order.winner)
				if got.Node(loser).Location != s.Node(loser).Location || got.Node("e1").Key != s.Node("e1").Key {
					t.Errorf("%s: more was lost", order.name)
				}
				again, _ := cluster.Resolve(order.claims, got)
				if diff := cmp.Diff(got, again, byValue); diff != "" {
					t.Errorf("%s: once more changes it:\n%s", order.name, diff)
				}
			}
			if diff := cmp.Diff(before, s, byValue); diff != "" {
				t.Errorf("the snapshot given was changed:\n%s", diff)
			}
		})
	}
}

// A node that only its object speaks for never takes from one whose agent spoke.
func TestSpokenGoesFirst(t *testing.T) {
	s := f1()
	guessed := model.Node{Name: "a", UID: "a", Ready: true, InternalIPs: prefixes("10.0.0.1/32"), PodPrefixes: prefixes("10.244.9.0/24")}
	s.Nodes = append(s.Nodes, guessed)
	s.Sort()
	got, warnings := cluster.Resolve(seen(true, guessed, s.Nodes[1], s.Nodes[2], s.Nodes[3]), s)
	if a := got.Node("a"); len(a.InternalIPs) != 0 || len(a.PodPrefixes) != 0 {
		t.Errorf("the guess keeps %v %v", a.InternalIPs, a.PodPrefixes)
	}
	if len(got.Node("w1").PodPrefixes) != 1 || len(got.Node("e1").InternalIPs) != 1 {
		t.Errorf("an agent's word was overruled")
	}
	if len(warnings) != 0 {
		t.Errorf("a mere guess raises %v", warnings)
	}
}

// A claim is as old as its holding it without a break.
func TestClaimsAge(t *testing.T) {
	s := f1()
	w1 := *s.Node("w1")
	moved := w1
	moved.PodPrefixes = prefixes("10.244.99.0/24")
	thief := *s.Node("e2")
	thief.PodPrefixes = w1.PodPrefixes
	s.Nodes[1] = thief

	winner := func(c cluster.Claims) string {
		got, _ := cluster.Resolve(c, s)
		for _, n := range got.Nodes {
			if slices.Equal(n.PodPrefixes, w1.PodPrefixes) {
				return n.Name
			}
		}
		return ""
	}
	var c cluster.Claims
	c.Observe(w1, 5)
	c.Observe(thief, 6)
	c.Observe(w1, 7) // seen again, not claimed anew
	if got := winner(c); got != "w1" {
		t.Errorf("the winner is %s, want w1, which never let go", got)
	}
	c.Observe(moved, 8)
	c.Observe(w1, 9)
	if got := winner(c); got != "e2" {
		t.Errorf("the winner is %s, want e2: w1 had let go", got)
	}
	c.Forget(thief.UID)
	if got := winner(c); got != "w1" {
		t.Errorf("the winner is %s, want w1: e2 was deleted", got)
	}
}

// Three claims: the first keeps everything, the second what the first leaves.
func TestChainOfOverlaps(t *testing.T) {
	s := f1()
	s.Nodes[0].PodPrefixes = prefixes("10.244.0.0/24")
	s.Nodes[1].PodPrefixes = prefixes("10.244.0.0/16", "10.250.0.0/24")
	s.Nodes[2].PodPrefixes = prefixes("10.244.9.0/24")
	got, warnings := cluster.Resolve(seen(true, s.Nodes...), s)
	var pods [][]string
	for _, n := range got.Nodes {
		var texts []string
		for _, p := range n.PodPrefixes {
			texts = append(texts, p.String())
		}
		pods = append(pods, texts)
	}
	if want := [][]string{{"10.244.0.0/24"}, {"10.250.0.0/24"}, {"10.244.9.0/24"}}; !reflect.DeepEqual(pods, want) {
		t.Errorf("got %v, want %v", pods, want)
	}
	wantSays(t, warnings, "node/e2", "10.244.0.0/16")
}
