package nstest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m, nil) }

// TestInside is what TestMissing runs.
func TestInside(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if out := nstest.Sh(t, "ip -o link"); strings.Count(out, "\n") != 1 {
			t.Errorf("not an empty namespace:\n%s", out)
		}
		if _, err := os.Stat("/run/wireguard"); !os.IsNotExist(err) {
			t.Error("not a private /run")
		}
		if path, err := exec.LookPath("tar"); err == nil {
			t.Errorf("a test finds %s, which a machine made for tests has not", path)
		}
	}, "ip")
}

// What is missing makes a test fail; it is skipped only where somebody says why.
func TestMissing(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"PATH=/nonexistent", "FAIL: TestInside"},
		{"KILO_TEST_SKIP_ROOT=no namespaces on this host", "no namespaces on this host"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestInside$", "-test.v")
		cmd.Env = append(os.Environ(), c.env)
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), c.want) || (err != nil) != strings.HasPrefix(c.want, "FAIL") {
			t.Errorf("%s: %v\n%s", c.env, err, out)
		}
	}
}
