package kernel

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/kerneltest"
)

// Whatever a table of iptables-legacy looks like, one that passes the check can be
// read and edited: our accept comes in once, and out again without a trace.
func FuzzLegacyTable(f *testing.F) {
	fam := &legacyFamilies[0]
	rule := func(verdict int32, matches ...byte) []byte {
		e := make([]byte, fam.size)
		e = append(e, matches...)
		native.PutUint16(e[fam.targetOffset:], uint16(len(e)))
		target := make([]byte, extHeader+8)
		native.PutUint16(target, uint16(len(target)))
		native.PutUint32(target[extHeader:], uint32(verdict))
		e = append(e, target...)
		native.PutUint16(e[fam.nextOffset:], uint16(len(e)))
		return e
	}
	drop, accept := rule(verdictDrop), rule(verdictAccept)
	f.Add(slices.Concat(accept, accept, drop, accept), uint32(len(accept)), uint32(2*len(accept)))
	f.Add(slices.Concat(accept, fam.accept(), rule(0), drop, accept), uint32(len(accept)), uint32(2*len(accept)+len(fam.accept())))
	f.Add(slices.Concat(rule(verdictAccept, 0, 0, 'x'), drop), uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, entries []byte, entry, underflow uint32) {
		for i := range legacyFamilies {
			rules := &legacyRules{family: &legacyFamilies[i], hooks: 1 << hookForward, entries: entries}
			rules.entry[hookForward], rules.underflow[hookForward] = entry, underflow
			if rules.check() != nil {
				continue
			}
			rules.policy()
			ours := func(r *legacyRules) (n int) {
				for _, e := range r.forward() {
					if r.family.ours(e) {
						n++
					}
					r.family.withoutCounters(e)
				}
				return n
			}
			put := rules.edit(rules.family.ours, rules.family.accept())
			if err := put.check(); err != nil {
				t.Fatalf("with our accept the table is none: %v", err)
			}
			policy := 0
			if rules.family.ours(rules.forward()[len(rules.forward())-1]) {
				policy = 1 // a policy that bears our comment is none of ours
			}
			if n := ours(put); n != 1+policy {
				t.Fatalf("our accept is there %d times", n-policy)
			}
			out := put.edit(rules.family.ours, nil)
			if err := out.check(); err != nil {
				t.Fatalf("without our accept the table is none: %v", err)
			}
			if n := ours(out); n != policy {
				t.Fatalf("taken out, it is there %d times", n-policy)
			}
			if ours(rules) == policy && out.count() != rules.count() {
				t.Fatalf("%d entries before, %d after", rules.count(), out.count())
			}
		}
	})
}

// Whatever a stranger writes into our table is read as something: as a rule of our
// words only if it is one.
func FuzzRule(f *testing.F) {
	for _, c := range kerneltest.Vocabulary("kilo0").Chains {
		for _, r := range c.Rules {
			exprs, err := compile(r)
			if err != nil {
				f.Fatal(err)
			}
			var list []netlink.Attribute
			for _, x := range exprs {
				b, err := expr.Marshal(byte(nftables.TableFamilyINet), x)
				if err != nil {
					f.Fatal(err)
				}
				list = append(list, netlink.Attribute{Type: unix.NFTA_LIST_ELEM, Data: b})
			}
			b, err := netlink.MarshalAttributes(list)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, []byte(r.Comment))
		}
	}
	f.Fuzz(func(t *testing.T, list, user []byte) {
		_ = comment(user)
		exprs, err := parseExpressions(list)
		if err != nil {
			return
		}
		rule, ok := decompile(exprs)
		if !ok {
			return
		}
		_ = rule.String()
		again, err := compile(rule)
		if err != nil {
			t.Fatalf("%s cannot be compiled: %v", rule, err)
		}
		if same, err := marshal(again); err != nil || !sameExpressions(exprs, same) {
			t.Fatalf("%s is not what was read (%v)", rule, err)
		}
	})
}

// Elements of a set are read as prefixes only if they are some.
func FuzzElements(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0, 0, 10, 1, 0, 0, 1}, false)
	f.Add([]byte{255, 0, 0, 0, 0}, false)
	f.Add([]byte{0, 0, 0, 0, 1}, false)
	f.Add(append(netip.MustParseAddr("fd00::").AsSlice(), 0), true)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		size := 4
		if v6 {
			size = 16
		}
		var ends []element
		for chunk := range slices.Chunk(b, size+1) {
			ends = append(ends, element{key: chunk[:len(chunk)-1], end: chunk[len(chunk)-1]&1 == 1})
		}
		got, ok := prefixes(ends)
		if !ok {
			return
		}
		for _, p := range got {
			if !p.IsValid() || p != p.Masked() {
				t.Fatalf("%v of %v", p, b)
			}
		}
	})
}
