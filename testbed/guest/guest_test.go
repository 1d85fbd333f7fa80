package guest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// need fails the test where it cannot run. On a run that asks for it, by
// KILO_LAB_SKIP, it skips the test, with the reason.
func need(t *testing.T, missing error) {
	t.Helper()
	if missing == nil {
		return
	}
	if why := os.Getenv("KILO_LAB_SKIP"); why != "" {
		t.Skipf("no guest on this machine (KILO_LAB_SKIP=%s): %v", why, missing)
	}
	t.Fatalf("no guest on this machine: %v\n(set KILO_LAB_SKIP to a reason to skip)", missing)
}

func kernel(t *testing.T) *Kernel {
	t.Helper()
	k, err := FindKernel(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// build compiles a program, or with "test" a package's tests, for the guest.
func build(t *testing.T, what, pkg string) string {
	t.Helper()
	root, err := tools.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "program")
	args := []string{"build"}
	if what == "test" {
		args = []string{"test", "-c"}
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "-trimpath", "-ldflags=-s -w", "-o", out, pkg)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, text)
	}
	return out
}

// host returns programs of this machine under their paths in a guest.
func host(t *testing.T, names ...string) map[string]string {
	t.Helper()
	programs := map[string]string{}
	for _, n := range names {
		at, err := exec.LookPath(n)
		if err != nil {
			t.Fatalf("%v: run testbed/setup.sh", err)
		}
		programs["/usr/bin/"+n] = at
	}
	return programs
}

// boot runs a guest to its end and wants every command to end well.
func boot(t *testing.T, g *Guest, limit time.Duration, run Runner) []Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	g.Init = build(t, "program", "./testbed/guest/init")
	began := time.Now()
	ended, err := g.Boot(ctx, kernel(t), t.TempDir(), run)
	took := time.Since(began)
	for i, r := range ended {
		if r.Code != 0 {
			t.Errorf("%s: exit code %d after %s:\n%s", strings.Join(g.Commands[i].Args, " "), r.Code, r.Took, r.Output)
		} else {
			t.Logf("%s: %.1f s", strings.Join(g.Commands[i].Args, " "), r.Took.Seconds())
		}
		took -= r.Took
	}
	if err != nil {
		t.Fatal(errors.Join(err, context.Cause(ctx)))
	}
	t.Logf("boot and power-off: %.1f s", took.Seconds())
	return ended
}
