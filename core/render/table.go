package render

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kilo-overlay/kilo/core/model"
)

// Table is text in columns.
type Table struct {
	Header []string
	Rows   [][]string
}

// none stands for a value that is not there.
const none = "-"

// String aligns the columns, three spaces apart. Empty cells show as "-".
// Lines have no trailing space and end in a line break.
func (t Table) String() string {
	rows := append([][]string{t.Header}, t.Rows...)
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(shown(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			cell = shown(cell)
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+3))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func shown(cell string) string {
	if cell == "" {
		return none
	}
	return oneLine(cell)
}

// Nodes returns the table of all nodes, sorted by location and name. heard
// says how long ago each node's WireGuard link last shook hands with anyone,
// by the node's name; nodes that it does not hold show "-".
func Nodes(s model.Snapshot, heard map[string]time.Duration) Table {
	t := Table{Header: []string{"NODE", "LOCATION", "ROLE", "ENDPOINT", "WIREGUARD IP", "POD PREFIX", "LAST HANDSHAKE", "TUNNEL"}}
	for _, r := range reachable(s) {
		for _, n := range r.Nodes {
			role, endpoint := "member", n.Endpoint.String()
			switch {
			case n == r.Gateway:
				role = "gateway"
				if !r.Learned.IsZero() {
					endpoint = r.Learned.String() + " (learned)"
				}
			case !n.Spoken:
				role = "no agent"
			}
			if !n.Ready {
				role += ", not ready"
			}
			last := ""
			if age, ok := heard[n.Name]; ok {
				last = age.Round(time.Second).String() + " ago"
			}
			t.Rows = append(t.Rows, []string{
				n.Name, n.Location, role, endpoint, join(n.WireGuardIPs, ","), join(n.PodPrefixes, ","), last, n.Tunnel,
			})
		}
	}
	return t
}
