package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// QEMU emulates the machine; Debian's package is qemu-system-x86.
const QEMU = "/usr/bin/qemu-system-x86_64"

// Guest is what a virtual machine holds and does.
type Guest struct {
	// Init is the file of the init program, built from ./init.
	Init string
	// Programs are files of this machine by their path in the guest. The
	// shared libraries that they need come along.
	Programs map[string]string
	// Files are further files by their path in the guest.
	Files map[string][]byte
	// Commands run one after the other, whether those before failed or not.
	Commands []Command
	// Modules of the kernel are loaded beside those that every guest gets.
	Modules []string
	// MemoryMiB is the guest's memory; 0: 1024.
	MemoryMiB int
	// Network gives the guest an interface eth0 from which it reaches what the
	// process reaches that runs QEMU; nobody reaches the guest.
	Network bool
}

// Command is one command line in the guest.
type Command struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
}

// Result is how a command ended.
type Result struct {
	Code   int // exit code; -1: it could not be started, or a signal ended it
	Took   time.Duration
	Output string // what it and the kernel have said
}

// image writes the guest's initial file system.
func (g *Guest) image(w io.Writer, k *Kernel) error {
	modules, err := k.modules(g.Modules)
	if err != nil {
		return err
	}
	a := newArchive(w)
	for _, d := range []string{"dev", "etc", "proc", "sys", "tmp", "run", "var/lib", "root", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"} {
		a.directory(d)
	}
	// Debian's layout: one /usr, and links to it.
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		a.link(d, "usr/"+d)
	}
	a.link("var/run", "/run")
	a.console()
	a.program("init", g.Init)
	for to, from := range g.Programs {
		a.program(to, from)
	}
	for to, text := range g.Files {
		a.file(to, 0o644, text)
	}
	var order []string
	for _, m := range modules {
		to := path.Join("modules", filepath.Base(m))
		a.copy(to, m, 0o644)
		order = append(order, "/"+to)
	}
	a.file(planFile, 0o644, mustJSON(plan{Modules: order, Commands: g.Commands}))
	return a.close()
}

// plan is what the init program reads; init/main.go has its twin.
type plan struct {
	Modules  []string  `json:"modules"` // in the order in which they are loaded
	Commands []Command `json:"commands"`
}

const planFile = "etc/guest.json"

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only
	}
	return text
}

// qemu is the command line that boots the guest. Its output is the guest's
// console.
func (g *Guest) qemu(k *Kernel, initrd string) []string {
	memory := g.MemoryMiB
	if memory == 0 {
		memory = 1024
	}
	args := []string{QEMU,
		// Emulation: this is to run on machines without KVM, and on those
		// where a guest hangs in it.
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", strconv.Itoa(memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-kernel", k.Image, "-initrd", initrd,
		// A panic ends QEMU, since -no-reboot makes a reboot an end.
		"-append", "console=ttyS0 quiet panic=-1 edd=off",
	}
	if g.Network {
		args = append(args, "-netdev", "user,id=out,restrict=off,ipv6=off", "-device", "virtio-net-pci,netdev=out,romfile=")
	} else {
		args = append(args, "-nic", "none")
	}
	return args
}

// The init program's marks in the console's output; init/main.go has their twins.
var (
	startMark = regexp.MustCompile(`^@guest start (\d+)$`)
	endMark   = regexp.MustCompile(`^@guest end (\d+) code (-?\d+) ms (\d+)$`)
)

const lastMark = "@guest done"

// results takes the console's output apart. The error says that the guest did
// not come to its end, and carries the end of what it said.
func results(console string, commands int) ([]Result, error) {
	out := make([]Result, 0, commands)
	var said strings.Builder
	running, done := false, false
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, "\r\n")
		if startMark.MatchString(line) {
			said.Reset()
			running = true
			continue
		}
		if m := endMark.FindStringSubmatch(line); m != nil && running {
			code, _ := strconv.Atoi(m[2])
			ms, _ := strconv.Atoi(m[3])
			out = append(out, Result{Code: code, Took: time.Duration(ms) * time.Millisecond, Output: said.String()})
			running = false
			said.Reset()
			continue
		}
		if line == lastMark {
			done = true
			break
		}
		said.WriteString(line + "\n")
	}
	if !done {
		return out, fmt.Errorf("the guest did not come to its end; it ran %d of %d commands, and said last:\n%s", len(out), commands, tail(said.String(), 60))
	}
	if len(out) != commands {
		return out, errors.Join(fmt.Errorf("the guest ran %d of %d commands", len(out), commands), errors.New(tail(console, 40)))
	}
	return out, nil
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
