package tools

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress tells a person, or a log that a person reads, what is being built.
type progress struct {
	w        io.Writer
	terminal bool
	every    time.Duration // between two lines about the same binary

	done, total int // binaries
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, every: 15 * time.Second}
	if f, ok := w.(*os.File); ok {
		// Any character device will do: at worst /dev/null gets more lines.
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.terminal, p.every = true, time.Second
		}
	}
	return p
}

// say writes one line.
func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(p.w, format+"\n", args...)
}

// during runs work, which builds b, and reports until it returns.
func (p *progress) during(b Binary, work func() error) error {
	p.done++
	start := time.Now()
	finished := make(chan error, 1)
	go func() { finished <- work() }()

	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		p.show(p.line(b, time.Since(start)))
		select {
		case err := <-finished:
			if err != nil {
				p.show(fmt.Sprintf("not built: %s, after %s", b.Name, round(time.Since(start))))
			} else {
				p.show(fmt.Sprintf("built %s (%d of %d) in %s", b.Name, p.done, p.total, round(time.Since(start))))
			}
			if p.terminal {
				fmt.Fprintln(p.w)
			}
			return err
		case <-tick.C:
		}
	}
}

// show writes a line; on a terminal it takes the place of the last one.
func (p *progress) show(line string) {
	if p.terminal {
		const startOfLine, clear = "\r", "\x1b[K"
		fmt.Fprint(p.w, startOfLine+clear+line)
		return
	}
	p.say("%s", line)
}

func (p *progress) line(b Binary, elapsed time.Duration) string {
	line := fmt.Sprintf("building %s (%d of %d, about %s on 2 cores)", b.Name, p.done, p.total, about(b.Typical))
	if elapsed >= time.Second {
		line += " … " + round(elapsed).String()
	}
	return line
}

// about says a duration as roughly as it is known.
func about(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
}

func round(d time.Duration) time.Duration { return d.Round(time.Second) }
