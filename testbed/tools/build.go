package tools

import (
	"bytes"
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
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build compiles one binary of the module to out. The compiler inherits held,
// so that the cache stays locked until it ends even if we are killed.
func (g gotool) build(ctx context.Context, module string, set Set, b Binary, out string, held *os.File) error {
	ldflags := linkerFlags
	if set.Stamp != "" {
		version, err := g.run(ctx, module, nil, "list", "-mod=readonly", "-m", "-f", "{{.Version}}", set.Release)
		if err != nil {
			return fmt.Errorf("read the version of %s: %w", set.Release, err)
		}
		ldflags += " -X " + set.Stamp + "=" + strings.TrimSpace(version)
	}
	args := append([]string{"build"}, flags()...)
	args = append(args, "-ldflags", ldflags, "-o", out, b.Package)
	if _, err := g.run(ctx, module, held, args...); err != nil {
		return fmt.Errorf("build %s (%s in %s): %w", b.Name, b.Package, filepath.Join(module, "go.mod"), err)
	}
	return nil
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
