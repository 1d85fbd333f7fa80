package scenario

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// up brings up a lab for one test and takes it down with it. When the test
// fails, the ends of the logs are printed, and with KILO_LAB_KEEP set the lab
// stays for a look around.
func up(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	return upNamed(t, labName(t), spec)
}

func upNamed(t *testing.T, name string, spec lab.Spec) *lab.Lab {
	t.Helper()
	return upWith(t, lab.Options{Name: name}, spec)
}

func upWith(t *testing.T, opts lab.Options, spec lab.Spec) *lab.Lab {
	t.Helper()
	need(t)
	name := opts.Name
	opts.Progress = lines{t}
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("KILO_LAB_KEEP") != "" {
			t.Logf("lab kept: kilolab status --name %s; kilolab down --name %s", name, name)
			return
		}
		// Not the test's context: that is over when this runs.
		if err := lab.Down(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, l)
		}
	})
	return l
}

// need fails the test where no lab can come up. On a run that asks for it, by
// KILO_LAB_SKIP, it skips the test, with the reason.
func need(t *testing.T) {
	t.Helper()
	err := lab.Check()
	if err == nil {
		return
	}
	if why := os.Getenv("KILO_LAB_SKIP"); why != "" {
		t.Skipf("no lab on this machine (KILO_LAB_SKIP=%s): %v", why, err)
	}
	t.Fatalf("no lab on this machine: %v\n(set KILO_LAB_SKIP to a reason to skip the scenarios)", err)
}

// everything tells whether this run may take its time (make test-all), or should
// leave out what others show in another way.
func everything() bool { return os.Getenv("KILO_TEST_ALL") != "" }

// onRequest skips what only such a run does.
func onRequest(t *testing.T) {
	t.Helper()
	if !everything() {
		t.Skip("only on request: make test-all, or KILO_TEST_ALL=1")
	}
}

// labName makes a test's own, so that runs at the same time stay apart.
func labName(t *testing.T) string {
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-")
	return fmt.Sprintf("%.20s-%d", name, os.Getpid())
}

// soon is how long a scenario waits for what happens in seconds on a machine that
// has nothing else to do. It promises nothing: what is promised in time is
// measured, and the measure held against the promise.
const soon = 2 * time.Minute

// eventually repeats a check until it returns nil, at most for the given time;
// then the test fails with what the check said last.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %v", limit, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// within fails the test where something took longer than was promised.
func within(t *testing.T, promised, took time.Duration, what string) {
	t.Helper()
	t.Logf("%s after %s", what, took.Round(10*time.Millisecond))
	if took > promised {
		t.Errorf("%s only after %s; want it within %s", what, took.Round(10*time.Millisecond), promised)
	}
}

// must fails the test on an error and returns the value otherwise.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// ok fails the test on an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// showLogs prints the end of what every agent has said.
func showLogs(t *testing.T, l *lab.Lab) {
	for _, n := range l.Agents() {
		text, err := n.Log("kg")
		if err != nil {
			continue
		}
		all := strings.Split(strings.TrimSpace(text), "\n")
		all = all[max(0, len(all)-15):]
		for i := range all {
			all[i] = fmt.Sprintf("%.300s", all[i])
		}
		t.Logf("%s kg:\n%s", n.Name, strings.Join(all, "\n"))
	}
}

// lines is a Writer that logs to the test.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
