package plan

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// Sorted as numbers or not, claims end up in the order of netip, equal ones in
// the order in which they came.
func TestSortClaims(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, kinds := range []int{1, 2} { // IPv4 alone, and both
		for n := range 200 {
			var all []claim
			for i := range n {
				four := netip.AddrFrom4([4]byte{byte(r.UintN(256)), byte(r.UintN(3)), 0, byte(r.UintN(256))})
				p := netip.PrefixFrom(four, r.IntN(33)).Masked()
				if r.IntN(kinds) == 1 {
					p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(r.UintN(4))}), r.IntN(129)).Masked()
				}
				all = append(all, claim{prefix: p, party: int32(i)})
			}
			want := slices.Clone(all)
			slices.SortStableFunc(want, func(a, b claim) int { return a.prefix.Compare(b.prefix) })
			sortClaims(all)
			if !slices.Equal(all, want) {
				t.Fatalf("of %d, %d families:\n%v\nwant\n%v", n, kinds, all, want)
			}
		}
	}
}
