package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
)

// Matrix tells who reaches whom.
type Matrix struct {
	Pairs []Pair `json:"pairs"`
}

// Pair is one direction between two places.
type Pair struct {
	From         string     `json:"from"`
	FromLocation string     `json:"fromLocation"`
	To           string     `json:"to"`
	ToLocation   string     `json:"toLocation"`
	Addr         netip.Addr `json:"addr"` // that was tried
	OK           bool       `json:"ok"`
	Problem      string     `json:"problem,omitempty"` // why not
}

// Across tells whether the pair is in two locations.
func (p Pair) Across() bool { return p.FromLocation != p.ToLocation }

func (p Pair) String() string { return p.From + " → " + p.To }

// pingsAtOnce bounds the load that a matrix puts on the machine.
const pingsAtOnce = 24

// Matrix lets every pod ping every other.
func (l *Lab) Matrix(ctx context.Context) (Matrix, error) {
	pods := places(l.Pods())
	return Reach(ctx, pods, pods)
}

// Reach lets every place of from ping every place of to, itself left out. The
// error tells that the trial could not be made; a pair that fails is a result.
func Reach(ctx context.Context, from, to []*Place) (Matrix, error) {
	return reach(ctx, from, to, func(_, _ *Place) bool { return true })
}

// reach is Reach for the wanted pairs.
func reach(ctx context.Context, from, to []*Place, wanted func(from, to *Place) bool) (Matrix, error) {
	var m Matrix
	var sources []*Place
	for _, f := range from {
		for _, t := range to {
			if f.Name != t.Name && wanted(f, t) {
				sources = append(sources, f)
				m.Pairs = append(m.Pairs, Pair{From: f.Name, FromLocation: f.Location, To: t.Name, ToLocation: t.Location, Addr: t.Addr})
			}
		}
	}
	slots := make(chan struct{}, pingsAtOnce)
	var wg sync.WaitGroup
	for i := range m.Pairs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := sources[i].Ping(ctx, m.Pairs[i].Addr); err != nil {
				m.Pairs[i].Problem = err.Error()
			} else {
				m.Pairs[i].OK = true
			}
		})
	}
	wg.Wait()
	return m, ctx.Err()
}

// placed is a machine or a pod.
type placed interface{ place() *Place }

func (p *Place) place() *Place { return p }

// Places takes machines or pods for what they have in common, as Reach wants
// them.
func places[T placed](items []T) []*Place {
	var out []*Place
	for _, i := range items {
		out = append(out, i.place())
	}
	return out
}

// NodePlaces and PodPlaces are arguments for Reach.
func (l *Lab) NodePlaces() []*Place { return places(l.Nodes()) }
func (l *Lab) PodPlaces() []*Place  { return places(l.Pods()) }

// OK tells whether every pair passed. Nothing tried is not OK.
func (m Matrix) OK() bool { return len(m.Pairs) > 0 && m.Passed() == len(m.Pairs) }

// Passed counts the pairs that work.
func (m Matrix) Passed() int { return len(m.Pairs) - len(m.Failed()) }

// Failed lists the pairs that do not.
func (m Matrix) Failed() []Pair {
	var failed []Pair
	for _, p := range m.Pairs {
		if !p.OK {
			failed = append(failed, p)
		}
	}
	return failed
}

// Summary is one line: "42/42 pairs".
func (m Matrix) Summary() string { return fmt.Sprintf("%d/%d pairs", m.Passed(), len(m.Pairs)) }

// String is the matrix for people: rows are sources, columns destinations;
// below it, what failed.
func (m Matrix) String() string {
	var rows, columns []string
	result := map[[2]string]string{}
	seenRow, seenColumn := map[string]bool{}, map[string]bool{}
	width := len("from \\ to")
	for _, p := range m.Pairs {
		if !seenRow[p.From] {
			seenRow[p.From] = true
			rows = append(rows, p.From)
		}
		if !seenColumn[p.To] {
			seenColumn[p.To] = true
			columns = append(columns, p.To)
		}
		width = max(width, len(p.From))
		result[[2]string{p.From, p.To}] = "FAIL"
		if p.OK {
			result[[2]string{p.From, p.To}] = "ok"
		}
	}
	// Columns come in the rows' order where they are the same places.
	if len(rows) == len(columns) {
		columns = rows
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s", width, "from \\ to")
	for _, c := range columns {
		fmt.Fprintf(&b, "  %-*s", max(len(c), 4), c)
	}
	b.WriteByte('\n')
	for _, r := range rows {
		fmt.Fprintf(&b, "%-*s", width, r)
		for _, c := range columns {
			cell, tried := result[[2]string{r, c}]
			if !tried {
				cell = "-"
			}
			fmt.Fprintf(&b, "  %-*s", max(len(c), 4), cell)
		}
		b.WriteByte('\n')
	}
	for _, p := range m.Failed() {
		fmt.Fprintf(&b, "failed: %s (%s)\n", p, p.Addr)
	}
	b.WriteString(m.Summary())
	return b.String()
}
