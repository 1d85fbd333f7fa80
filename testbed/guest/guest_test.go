package guest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
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

// host returns programs of this machine by their path in a guest.
func host(t *testing.T, names ...string) map[string]string {
	t.Helper()
	programs, err := HostPrograms(names...)
	if err != nil {
		t.Fatal(err)
	}
	return programs
}

// boot runs a guest to its end and wants every command to end well.
func boot(t *testing.T, g *Guest, limit time.Duration, run Runner) []Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
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
