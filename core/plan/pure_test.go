package plan_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The planner, what it is made of, and what prints its results stay pure:
// nothing of the product but these packages, and of the standard library nothing
// that reads a clock, a file or the network.
func TestImports(t *testing.T) {
	const module = "github.com/kilo-overlay/kilo/"
	allowed := map[string][]string{
		"core/model":    nil,
		"core/state":    {"core/model"},
		"core/adapter":  {"core/model", "core/state"},
		"core/plan":     {"core/model", "core/state", "core/adapter"},
		"core/self":     {"core/model", "core/state", "core/adapter"},
		"core/report":   {"core/model"},
		"core/render":   {"core/model", "core/state", "core/plan", "core/report"},
		"core/link":     {"core/model", "core/plan", "core/render"},
		"core/firewall": {"core/model"},
	}
	// Durations are values; these are a clock.
	clock := regexp.MustCompile(`\btime\.(Now|Since|Until|After|AfterFunc|Tick|NewTimer|NewTicker|Sleep)\b`)
	forbidden := []string{"os", "net", "net/http", "syscall", "log", "log/slog", "os/exec", "io/fs", "math/rand", "math/rand/v2", "sync"}
	for pkg, ours := range allowed {
		out, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, module+pkg).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pkg, err)
		}
		for _, imp := range strings.Fields(string(out)) {
			switch {
			case strings.HasPrefix(imp, module):
				if !contains(ours, strings.TrimPrefix(imp, module)) {
					t.Errorf("%s imports %s", pkg, imp)
				}
			case strings.Contains(strings.SplitN(imp, "/", 2)[0], "."):
				t.Errorf("%s imports %s: the planner stays within the standard library", pkg, imp)
			case contains(forbidden, imp):
				t.Errorf("%s imports %s: a decision reads no clock, file or network", pkg, imp)
			}
		}
		files, err := filepath.Glob("../../" + pkg + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources of %s (%v)", pkg, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if found := clock.Find(text); found != nil && !strings.HasSuffix(file, "_test.go") {
				t.Errorf("%s reads a clock: %s", file, found)
			}
		}
	}
}

func TestBuildsOnDarwin(t *testing.T) {
	cmd := exec.Command("go", "build", "-o", os.DevNull, "github.com/kilo-overlay/kilo/core/plan")
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
