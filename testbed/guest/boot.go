package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// Runner runs a command line to its end and returns its standard output. What
// the guest reaches by its network is what the command reaches.
type Runner func(ctx context.Context, argv ...string) (string, error)

// Here runs a command on this machine.
func Here(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, problem strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problem
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}

// Boot boots a guest with this kernel, waits until it has powered off, and
// returns how its commands ended. Its image is written to dir and removed
// afterwards.
func (g *Guest) Boot(ctx context.Context, k *Kernel, dir string, run Runner) (ended []Result, err error) {
	initrd := filepath.Join(dir, "initrd")
	f, err := os.Create(initrd)
	if err != nil {
		return nil, fmt.Errorf("the guest's image: %w", err)
	}
	defer os.Remove(initrd)
	w := bufio.NewWriterSize(f, 1<<20)
	if err := errors.Join(g.image(w, k), w.Flush(), f.Close()); err != nil {
		return nil, fmt.Errorf("the guest's image: %w", err)
	}
	console, err := run(ctx, g.qemu(k, initrd)...)
	ended, incomplete := results(console, len(g.Commands))
	return ended, errors.Join(err, incomplete)
}

// Build compiles a command of the source tree to the file out, such that it runs
// in a guest.
func Build(ctx context.Context, out, pkg string) error { return compile(ctx, "build", "-o", out, pkg) }

// BuildTests compiles the tests of a package.
func BuildTests(ctx context.Context, out, pkg string) error {
	return compile(ctx, "test", "-c", "-o", out, pkg)
}

func compile(ctx context.Context, what string, args ...string) error {
	root, err := tools.SourceRoot()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{what, "-trimpath", "-ldflags=-s -w"}, args...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	return nil
}

// HostPrograms returns programs of this machine by their path in a guest.
func HostPrograms(names ...string) (map[string]string, error) {
	programs := map[string]string{}
	for _, n := range names {
		at, err := exec.LookPath(n)
		if err != nil {
			return nil, fmt.Errorf("%w: run testbed/setup.sh", err)
		}
		programs["/usr/bin/"+n] = at
	}
	return programs, nil
}

// IPTables returns all of iptables, of both kinds, by path in a guest. There the
// unqualified names are the nft kind's.
func IPTables() (map[string]string, error) {
	var names []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, kind := range []string{"-nft", "-legacy"} {
			for _, what := range []string{"", "-save", "-restore"} {
				names = append(names, family+kind+what)
			}
		}
	}
	programs, err := HostPrograms(names...)
	if err != nil {
		return nil, err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		programs["/usr/bin/"+family] = programs["/usr/bin/"+family+"-nft"]
	}
	plugins, err := filepath.Glob("/usr/lib/*-linux-gnu/xtables/*.so")
	if err != nil || len(plugins) == 0 {
		return nil, fmt.Errorf("iptables has no plugins in /usr/lib/*-linux-gnu/xtables: %w", err)
	}
	for _, p := range plugins {
		programs[p] = p
	}
	return programs, nil
}

// Check tells what this machine lacks to boot guests; nil if it can.
func Check() error {
	var problems []error
	for _, p := range [][2]string{{QEMU, "qemu-system-x86"}, {"/usr/bin/apt-get", "apt"}, {"/usr/bin/dpkg", "dpkg"}} {
		if _, err := os.Stat(p[0]); err != nil {
			problems = append(problems, fmt.Errorf("%s is missing: install %s (or run testbed/setup.sh)", p[0], p[1]))
		}
	}
	return errors.Join(problems...)
}
