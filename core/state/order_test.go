package state

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

type pair struct{ key, at int }

func byKey(a, b *pair) int { return cmp.Compare(a.key, b.key) }

func TestInOrderSortsAsTheStandardLibraryDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		s := make([]pair, r.IntN(40))
		for i := range s {
			s[i] = pair{r.IntN(20), i}
		}
		// Long runs, as planners and kernels make them.
		if len(s) > 10 && r.IntN(2) == 0 {
			slices.SortStableFunc(s[:8], func(a, b pair) int { return byKey(&a, &b) })
			slices.SortStableFunc(s[8:], func(a, b pair) int { return byKey(&a, &b) })
		}
		before := slices.Clone(s)
		want := slices.Clone(s)
		slices.SortStableFunc(want, func(a, b pair) int { return byKey(&a, &b) })
		if got := inOrder(s, byKey, nil); !slices.Equal(got, want) {
			t.Fatalf("%v: got %v, want %v", before, got, want)
		}
		unique := slices.CompactFunc(want, func(a, b pair) bool { return a.key == b.key })
		got := inOrder(s, byKey, func(a, b *pair) bool { return a.key == b.key })
		if !slices.Equal(got, unique) {
			t.Fatalf("%v: got %v, want %v", before, got, unique)
		}
		if !slices.Equal(s, before) {
			t.Fatalf("the argument was changed: %v, was %v", s, before)
		}
	}
}

func TestInOrderCopiesOnlyWhatItMust(t *testing.T) {
	s := []pair{{1, 0}, {2, 0}, {3, 0}}
	if got := inOrder(s, byKey, nil); &got[0] != &s[0] {
		t.Error("a sorted slice was copied")
	}
}
