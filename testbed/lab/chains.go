package lab

import (
	"slices"
	"strings"
)

// sortChains brings the chains and sets inside each table of an nft listing into
// the order of their names. The kernel's order is that in which they were made,
// which means nothing: Cilium makes its own anew with every start.
func sortChains(lines []string) []string {
	var out []string
	var blocks [][]string // of the table at hand
	flush := func() {
		slices.SortStableFunc(blocks, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
		out = append(out, slices.Concat(blocks...)...)
		blocks = nil
	}
	for _, line := range lines {
		switch {
		case !strings.HasPrefix(line, "\t"): // table … {, and its end
			flush()
			out = append(out, line)
		case blocks != nil && (strings.HasPrefix(line, "\t\t") || line == "\t}"):
			blocks[len(blocks)-1] = append(blocks[len(blocks)-1], line)
		default:
			blocks = append(blocks, []string{line})
		}
	}
	flush()
	return out
}

// sortRules is sortChains for what iptables-save prints: the order of rules is
// kept inside a chain.
func sortRules(lines []string) []string {
	chain := func(line string) string {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[0] == "-A" {
			return fields[1]
		}
		return "" // a chain's declaration
	}
	var out, table []string
	for _, line := range lines {
		if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "-A ") {
			table = append(table, line)
			continue
		}
		slices.SortStableFunc(table, func(a, b string) int {
			if by := strings.Compare(chain(a), chain(b)); by != 0 || chain(a) != "" {
				return by
			}
			return strings.Compare(a, b)
		})
		out, table = append(append(out, table...), line), nil
	}
	return append(out, table...)
}
