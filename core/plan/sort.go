package plan

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// sortClaims sorts by prefix, IPv4 first, an enclosing prefix before what it
// encloses. Most of a plan's work was to compare prefixes while it sorted them:
// the IPv4 ones, which are most, are sorted as plain numbers.
func sortClaims(all []claim) {
	// Prefix, its length and the claim's index in one number.
	const lengthBits, indexBits = 6, 26
	if len(all) >= 1<<indexBits {
		slices.SortFunc(all, compareClaims)
		return
	}
	order := make([]uint64, len(all))
	others := false
	for i := range all {
		a := all[i].prefix.Addr()
		if !a.Is4() {
			others = true
			break
		}
		four := a.As4()
		order[i] = uint64(binary.BigEndian.Uint32(four[:]))<<(lengthBits+indexBits) | uint64(all[i].prefix.Bits())<<indexBits | uint64(i)
	}
	if others {
		slices.SortStableFunc(all, compareClaims)
		return
	}
	slices.Sort(order)
	// Bring them into that order, each by one move: along every cycle.
	const index = 1<<indexBits - 1
	for i := range order {
		if int(order[i]&index) == i {
			continue
		}
		first, at := all[i], i
		for {
			from := int(order[at] & index)
			order[at] = uint64(at)
			if from == i {
				all[at] = first
				break
			}
			all[at] = all[from]
			at = from
		}
	}
}

func compareClaims(a, b claim) int { return comparePrefix(a.prefix, b.prefix) }

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
