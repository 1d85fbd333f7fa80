package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report collects figures as Markdown, and tells a person how it goes.
type report struct {
	progress io.Writer
	began    time.Time
	rounds   int // of throughput and round trip
	parts    []string
}

// say prints a line of progress.
func (r *report) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%6.1fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// section begins one, with a word on what was measured and how.
func (r *report) section(title, how string) {
	r.parts = append(r.parts, "## "+title+"\n\n"+wrapped(how)+"\n")
}

// line adds a paragraph.
func (r *report) line(format string, args ...any) {
	r.parts = append(r.parts, wrapped(fmt.Sprintf(format, args...))+"\n")
}

// table begins a table; its rows follow.
func (r *report) table(columns ...string) *table {
	r.parts = append(r.parts, "")
	return &table{r, len(r.parts) - 1, [][]string{columns}}
}

func (r *report) String() string { return strings.Join(r.parts, "\n") }

type table struct {
	r    *report
	at   int
	rows [][]string
}

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
	t.r.parts[t.at] = t.String()
}

func (t *table) String() string {
	var b strings.Builder
	for i, row := range t.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}

// wrapped breaks a paragraph into lines.
func wrapped(text string) string {
	const width = 110
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

// machine describes where the figures come from.
func machine() string {
	cpu := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				cpu = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	var info unix.Sysinfo_t
	var uname unix.Utsname
	_ = unix.Sysinfo(&info)
	_ = unix.Uname(&uname)
	return fmt.Sprintf("%d cores of %s, %d GiB, Linux %s, %s", runtime.NumCPU(), cpu,
		(info.Totalram*uint64(info.Unit)+1<<29)>>30, unix.ByteSliceToString(uname.Release[:]), runtime.Version())
}

// load is the machine's load average of the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	return strings.Fields(string(text))[0]
}

// quantile of values, which it sorts; q from 0 to 1.
func quantile[T ~float64 | ~int64](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

func median[T ~float64 | ~int64](values []T) T { return quantile(values, 0.5) }
