package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kilo-overlay/kilo/core/firewall"
	"github.com/kilo-overlay/kilo/core/state"
)

// legacyRules is a table as it was read.
type legacyRules struct {
	family    *legacyFamily
	hooks     uint32 // valid_hooks
	entry     [hookCount]uint32
	underflow [hookCount]uint32 // where each chain's policy stands
	entries   []byte
}

// check makes sure of what the rest relies on: entries that follow one another
// to the end, and a FORWARD chain among them.
func (t *legacyRules) check() error {
	f := t.family
	starts := map[uint32]bool{}
	for at := 0; at < len(t.entries); {
		if len(t.entries)-at < f.size {
			return fmt.Errorf("an entry of %d bytes at %d", len(t.entries)-at, at)
		}
		e := t.entries[at:]
		target, next := int(native.Uint16(e[f.targetOffset:])), int(native.Uint16(e[f.nextOffset:]))
		if target < f.size || next < target+extHeader || next > len(e) {
			return fmt.Errorf("an entry at %d with its target at %d and its end at %d", at, target, next)
		}
		starts[uint32(at)] = true
		at += next
	}
	if t.hooks&(1<<hookForward) == 0 || !starts[t.entry[hookForward]] || !starts[t.underflow[hookForward]] || t.entry[hookForward] > t.underflow[hookForward] {
		return errors.New("it has no chain FORWARD")
	}
	return nil
}

// each calls visit with every entry and where it stands.
func (t *legacyRules) each(visit func(at uint32, e []byte)) {
	for at := 0; at < len(t.entries); {
		end := at + int(native.Uint16(t.entries[at+t.family.nextOffset:]))
		visit(uint32(at), t.entries[at:end])
		at = end
	}
}

// count is the number of entries.
func (t *legacyRules) count() (n int) {
	t.each(func(uint32, []byte) { n++ })
	return n
}

// inForward tells whether the entry at that place is a rule of FORWARD; its
// policy is none.
func (t *legacyRules) inForward(at uint32) bool {
	return at >= t.entry[hookForward] && at < t.underflow[hookForward]
}

// forward are the rules of FORWARD, its policy last.
func (t *legacyRules) forward() (out [][]byte) {
	t.each(func(at uint32, e []byte) {
		if t.inForward(at) || at == t.underflow[hookForward] {
			out = append(out, e)
		}
	})
	return out
}

// policy is the verdict of FORWARD's policy; 0: none that we know.
func (t *legacyRules) policy() int32 {
	chain := t.forward()
	verdict, _ := standardVerdict(t.family.target(chain[len(chain)-1]))
	return verdict
}

func (f *legacyFamily) target(entry []byte) []byte {
	return entry[native.Uint16(entry[f.targetOffset:]):]
}

// standardVerdict reads the standard target, whose name is empty.
func standardVerdict(target []byte) (verdict int32, ok bool) {
	if len(target) < extHeader+4 || target[2] != 0 {
		return 0, false
	}
	return int32(native.Uint32(target[extHeader:])), true
}

// edit returns the table without the rules of FORWARD that drop names, and with
// insert at FORWARD's beginning. Whatever points at a place in the table (hooks,
// jumps, "go on behind this rule") points at the same rule afterwards.
func (t *legacyRules) edit(drop func(entry []byte) bool, insert []byte) *legacyRules {
	out := &legacyRules{family: t.family, hooks: t.hooks}
	moved := map[uint32]uint32{}
	t.each(func(at uint32, e []byte) {
		if at == t.entry[hookForward] {
			out.entry[hookForward] = uint32(len(out.entries))
			out.entries = append(out.entries, insert...)
		}
		moved[at] = uint32(len(out.entries))
		if !t.inForward(at) || !drop(e) {
			out.entries = append(out.entries, e...)
		}
	})
	for h := range hookCount {
		if t.hooks&(1<<h) == 0 {
			continue
		}
		out.underflow[h] = moved[t.underflow[h]]
		if h != hookForward {
			out.entry[h] = moved[t.entry[h]]
		}
	}
	out.each(func(_ uint32, e []byte) {
		target := t.family.target(e)
		if v, ok := standardVerdict(target); ok && v >= 0 {
			native.PutUint32(target[extHeader:], moved[uint32(v)])
		}
	})
	return out
}

// ours tells whether a rule bears our comment.
func (f *legacyFamily) ours(entry []byte) bool {
	target := int(native.Uint16(entry[f.targetOffset:]))
	for at := f.size; at+extHeader <= target; {
		size := int(native.Uint16(entry[at:]))
		if size < extHeader || at+size > target {
			return false
		}
		if cString(entry[at+2:at+2+extNameSize]) == "comment" && cString(entry[at+extHeader:at+size]) == firewall.Comment {
			return true
		}
		at += size
	}
	return false
}

// accept is "-m comment --comment … -m mark --mark 0x1000/0x1000 -j ACCEPT".
func (f *legacyFamily) accept() []byte {
	ext := func(name string, revision byte, data []byte) []byte {
		size := (extHeader + len(data) + 7) &^ 7
		b := make([]byte, size)
		native.PutUint16(b, uint16(size))
		copy(b[2:], name)
		b[2+extNameSize] = revision
		copy(b[extHeader:], data)
		return b
	}
	said := make([]byte, commentSize)
	copy(said, firewall.Comment)
	mark := slices.Concat(native32(state.MarkForwarded), native32(state.MarkForwarded), native32(0))
	verdict := int32(verdictAccept)

	e := make([]byte, f.size)
	e = append(e, ext("comment", 0, said)...)
	e = append(e, ext("mark", markRevision, mark)...)
	native.PutUint16(e[f.targetOffset:], uint16(len(e)))
	e = append(e, ext("", 0, native32(uint32(verdict)))...)
	native.PutUint16(e[f.nextOffset:], uint16(len(e)))
	return e
}

// withoutCounters is an entry as it was given to the kernel.
func (f *legacyFamily) withoutCounters(entry []byte) []byte {
	e := slices.Clone(entry)
	clear(e[f.counters : f.counters+counterSize])
	clear(e[f.comeFrom : f.comeFrom+4]) // the kernel's own note of who leads here
	return e
}
