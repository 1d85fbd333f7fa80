package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const tcpdump = "/usr/bin/tcpdump"

// Capture is a running tcpdump.
type Capture struct {
	place *Place
	group group
	file  string // pcap
	log   string
}

// captureDevice is what to listen on for everything that passes a place: the
// internet's segment shows each packet once.
func (p *Place) captureDevice() string {
	if p.Name == internet && !p.lab.Spec.RoutedInternet {
		return internetSegment
	}
	return "any"
}

// Capture records the packets on a device of the place ("": all that passes)
// that match a tcpdump filter ("": all). It returns when packets are recorded.
func (p *Place) Capture(ctx context.Context, device, filter string) (*Capture, error) {
	pid, err := p.pid()
	if err != nil {
		return nil, err
	}
	if device == "" {
		device = p.captureDevice()
	}
	dir := p.lab.path("capture")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, p.Name+"-*.pcap")
	if err != nil {
		return nil, err
	}
	f.Close()
	c := &Capture{place: p, file: f.Name(), log: f.Name() + ".log", group: p.group.sub("capture", filepath.Base(f.Name()))}
	_, err = process{
		group: c.group,
		// -Z: it cannot write to our files as somebody else.
		argv:  []string{tcpdump, "-i", device, "-n", "-U", "--immediate-mode", "-Z", "root", "-w", c.file, filter},
		log:   c.log,
		enter: pid,
	}.start(ctx)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := poll(wait, 5*time.Millisecond, func() bool {
		text, _ := os.ReadFile(c.log)
		return strings.Contains(string(text), "listening on")
	}); err != nil {
		return nil, fmt.Errorf("%s: tcpdump does not listen on %s: %s", p.Name, device, logTail(c.log, 5))
	}
	return c, nil
}

// Stop ends the capture and returns its packets, one line each, as tcpdump
// prints them with numbers for names.
func (c *Capture) Stop(ctx context.Context) ([]string, error) {
	// Packets that have just passed are still on their way to tcpdump.
	time.Sleep(50 * time.Millisecond)
	if err := c.group.signal(unix.SIGINT); err != nil {
		return nil, err
	}
	if !c.group.waitEmpty(ctx, 5*time.Second) {
		return nil, fmt.Errorf("%s: tcpdump does not end", c.place.Name)
	}
	if err := c.group.remove(ctx); err != nil {
		return nil, err
	}
	out, err := run(ctx, c.place.group.sub("exec"), "", tcpdump, "-nn", "-r", c.file)
	if err != nil {
		return nil, err
	}
	defer os.Remove(c.log)
	defer os.Remove(c.file)
	return nonEmpty(strings.Split(out, "\n")), nil
}

// BecomeCapture replaces the running program by a tcpdump that prints.
func (p *Place) BecomeCapture(device string, filter ...string) error {
	if device == "" {
		device = p.captureDevice()
	}
	return p.Become(append([]string{tcpdump, "-nn", "-l", "-i", device}, filter...)...)
}

func nonEmpty(lines []string) []string {
	var out []string
	for _, l := range lines {
		if strings.TrimSpace(l) != "" {
			out = append(out, l)
		}
	}
	return out
}
