package plan_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// What the mesh's traffic carries through the forward hook can be seen whatever
// mark it came with, is never WireGuard's own, and is gone afterwards: a mark of
// Cilium's says who the sender is, with any cluster id.
func TestTagLeavesMarksAsTheyWere(t *testing.T) {
	text, err := os.ReadFile("testdata/tagged.txt")
	if err != nil {
		t.Fatal(err)
	}
	input, _, _ := strings.Cut(string(text), "\n---\n")
	c := parseCase(t, input)
	s, _ := plan.Plan(c.snapshot, c.facts, c.adapter)
	chain := func(name string) []state.FilterRule {
		i := slices.IndexFunc(s.Filter.Chains, func(c state.Chain) bool { return c.Name == name })
		if i < 0 {
			t.Fatalf("no chain %s", name)
		}
		return s.Filter.Chains[i].Rules
	}
	// Rules that match by address match here.
	through := func(mark uint32, rules []state.FilterRule) uint32 {
		for _, r := range rules {
			if slices.ContainsFunc(r.Matches, func(m state.Match) bool {
				is, ok := m.(state.MarkIs)
				return ok && (is.Mark == mark) == is.Not
			}) {
				continue
			}
			switch a := r.Action.(type) {
			case state.AddMark:
				mark |= a.Bits
			case state.TakeMark:
				mark &^= a.Bits
			default:
				t.Fatalf("rule %v", r)
			}
		}
		return mark
	}
	marks := []uint32{0, 0x4000, 0x2000, 0x8000, 0x80, 0x0400}
	for cluster := range uint32(256) {
		const identity, magicIdentity, magicOverlay = 0x1234, 0x0f00, 0x0400 // Cilium's bpf/lib/common.h
		marks = append(marks, identity<<16|magicIdentity|cluster, identity<<16|magicOverlay|cluster, identity<<16|0x4000|magicIdentity|cluster)
	}
	for _, mark := range marks {
		inside := through(mark, chain("tag"))
		if inside&state.MarkForwarded == 0 || inside == state.Mark {
			t.Errorf("mark %#x: %#x in the forward hook", mark, inside)
		}
		if after := through(inside, chain("untag")); after != mark {
			t.Errorf("mark %#x: %#x after it", mark, after)
		}
	}
}
