package state

import (
	"fmt"
	"slices"
	"strings"
)

// String prints f as "nft list table inet kilo" of nftables 1.0.6 does, in the
// order in which f lists sets and chains; only the breaks of long lists of
// elements differ. It is "" for an empty Filter.
func (f Filter) String() string {
	if f.IsEmpty() {
		return ""
	}
	var blocks []string
	for i := range f.Sets {
		blocks = append(blocks, f.Sets[i].String())
	}
	for i := range f.Chains {
		blocks = append(blocks, f.Chains[i].String())
	}
	return "table inet " + FilterTable + " {\n" + strings.Join(blocks, "\n") + "}\n"
}

// String prints the set as nft does, one tab deep.
func (s Set) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tset %s {\n\t\ttype ipv%s_addr\n\t\tflags interval\n", s.Name, map[bool]string{false: "4", true: "6"}[s.V6])
	for i, e := range s.Elements {
		if i == 0 {
			b.WriteString("\t\telements = { ")
		} else {
			b.WriteString(",\n\t\t\t     ")
		}
		b.WriteString(prefixText(e))
	}
	if len(s.Elements) > 0 {
		b.WriteString(" }\n")
	}
	b.WriteString("\t}\n")
	return b.String()
}

// String prints the chain as nft does, one tab deep.
func (c Chain) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %s; policy accept;\n", c.Name, c.Type, c.Hook, priorityText(c.Hook, c.Priority))
	for i := range c.Rules {
		b.WriteString("\t\t" + c.Rules[i].String() + "\n")
	}
	b.WriteString("\t}\n")
	return b.String()
}

// String prints the rule as nft does.
func (r FilterRule) String() string {
	w := make(words, 0, len(r.Matches)+3)
	for _, m := range r.Matches {
		w.add(m.String())
	}
	w.add(r.Action.String())
	if r.Comment != "" {
		w.add("comment", `"`+r.Comment+`"`)
	}
	return w.String()
}

// priorityText prints a priority by the name of the well-known one that is at
// most 10 away. Some names nft knows in one hook only.
func priorityText(hook string, priority int) string {
	type known struct {
		name  string
		value int
		hook  string // "": any
	}
	for _, k := range []known{
		{"raw", -300, ""},
		{"mangle", -150, ""},
		{"dstnat", -100, "prerouting"},
		{"filter", 0, ""},
		{"security", 50, ""},
		{"srcnat", 100, "postrouting"},
	} {
		if k.hook != "" && k.hook != hook {
			continue
		}
		switch d := priority - k.value; {
		case d == 0:
			return k.name
		case 0 < d && d <= 10:
			return fmt.Sprintf("%s + %d", k.name, d)
		case -10 <= d && d < 0:
			return fmt.Sprintf("%s - %d", k.name, -d)
		}
	}
	return fmt.Sprint(priority)
}

// The following compare filters field by field: a Match may hold a slice, and
// comparing such interface values with == panics.

func sameFilter(a, b *Filter) bool {
	return slices.EqualFunc(a.Sets, b.Sets, func(a, b Set) bool {
		return a.Name == b.Name && a.V6 == b.V6 && slices.Equal(a.Elements, b.Elements)
	}) && slices.EqualFunc(a.Chains, b.Chains, func(a, b Chain) bool {
		return a.Name == b.Name && a.Type == b.Type && a.Hook == b.Hook && a.Priority == b.Priority &&
			slices.EqualFunc(a.Rules, b.Rules, sameFilterRule)
	})
}

func sameFilterRule(a, b FilterRule) bool {
	return a.Comment == b.Comment && a.Action == b.Action && slices.EqualFunc(a.Matches, b.Matches, sameMatch)
}

func sameMatch(a, b Match) bool {
	if a, ok := a.(CtState); ok {
		b, ok := b.(CtState)
		return ok && slices.Equal(a.States, b.States)
	}
	return a == b
}
