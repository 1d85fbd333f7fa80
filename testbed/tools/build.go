package tools

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// gotool is the Go command that builds.
type gotool struct {
	path string
}

func findGo() (gotool, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		// Where the official archive is unpacked; sudo and cron leave it out
		// of PATH.
		const usual = "/usr/local/go/bin/go"
		if _, statErr := os.Stat(usual); statErr != nil {
			return gotool{}, fmt.Errorf("the lab builds its tools from source and needs Go: %w", err)
		}
		path = usual
	}
	return gotool{path: path}, nil
}

// flags are common to all builds: they make the result small, independent of C
// libraries and of the place where it was built.
func flags() []string {
	return []string{"-mod=readonly", "-trimpath", "-buildvcs=false"}
}

const linkerFlags = "-s -w"

// key identifies everything that goes into the binaries of a set.
func (g gotool) key(ctx context.Context, module string, set Set) (string, error) {
	sources, err := digestTree(module)
	if err != nil {
		return "", err
	}
	// Asked inside the module: its go directive may select another toolchain.
	platform, err := g.run(ctx, module, nil, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64")
	if err != nil {
		return "", fmt.Errorf("ask %s for its version in %s: %w", g.path, module, err)
	}
	h := sha256.New()
	fmt.Fprintln(h, sources, platform, flags(), linkerFlags, set.Stamp)
	for _, b := range set.Binaries {
		fmt.Fprintln(h, b.Name, b.Package)
	}
	if set.StampFormat != "" || set.Trees != nil {
		fmt.Fprintln(h, set.StampFormat, set.Trees)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build compiles one binary of the module to out. The compiler inherits held,
// so that the cache stays locked until it ends even if we are killed.
func (g gotool) build(ctx context.Context, module string, set Set, b Binary, out string, held *os.File) error {
	ldflags := linkerFlags
	if set.Stamp != "" {
		version, err := g.describe(ctx, module, set.Release, cmp.Or(set.StampFormat, "{{.Version}}"))
		if err != nil {
			return err
		}
		ldflags += " -X '" + set.Stamp + "=" + version + "'"
	}
	args := append([]string{"build"}, flags()...)
	args = append(args, "-ldflags", ldflags, "-o", out, b.Package)
	if _, err := g.run(ctx, module, held, args...); err != nil {
		return fmt.Errorf("build %s (%s in %s): %w", b.Name, b.Package, filepath.Join(module, "go.mod"), err)
	}
	return nil
}

// describe tells what the template says of a module that this one requires.
func (g gotool) describe(ctx context.Context, module, path, template string) (string, error) {
	out, err := g.run(ctx, module, nil, "list", "-mod=readonly", "-m", "-f", template, path)
	if err != nil {
		return "", fmt.Errorf("ask for %s of %s: %w", template, path, err)
	}
	return strings.TrimSpace(out), nil
}

// sources copies a tree of the set's release to the directory out.
func (g gotool) sources(ctx context.Context, module string, set Set, tree Tree, out string) error {
	release, err := g.describe(ctx, module, set.Release, "{{.Dir}}")
	if err != nil {
		return err
	}
	if release == "" {
		return fmt.Errorf("%s of %s: its source is not in the module cache", tree.From, set.Release)
	}
	return copyTree(filepath.Join(release, filepath.FromSlash(tree.From)), out, tree.Without)
}

// run calls the Go command in dir and returns its standard output. An error
// carries the end of what it said.
func (g gotool) run(ctx context.Context, dir string, held *os.File, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, g.path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=", "GOARCH=")
	// The Go command starts compilers: end them along with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if held != nil {
		cmd.ExtraFiles = []*os.File{held}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("%w\n%s", err, lastLines(stderr.String(), 20))
	}
	return stdout.String(), nil
}

// lastLines returns the end of text, at most n lines.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
