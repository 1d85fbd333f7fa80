package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// hello is a set whose real module has no dependencies and builds in an
// instant; it goes the same way as Kubernetes does.
func hello() Set {
	return Set{Name: "hello", Binaries: []Binary{
		{Name: "greet", Package: ".", Typical: time.Second},
		{Name: "part", Package: "./part", Typical: time.Second},
	}}
}

const greetSource = `package main

func main() { println("good morning") }
`

// workshop writes the module of hello and returns its parent directory and an
// empty cache.
func workshop(t *testing.T) (modules, cache string) {
	t.Helper()
	modules, cache = t.TempDir(), filepath.Join(t.TempDir(), "cache")
	write(t, filepath.Join(modules, "hello", "go.mod"), "module example.org/hello\n\ngo 1.26\n")
	write(t, filepath.Join(modules, "hello", "main.go"), greetSource)
	write(t, filepath.Join(modules, "hello", "part", "main.go"), "package main\n\nfunc main() {}\n")
	return modules, cache
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustEnsure(t *testing.T, w io.Writer, modules, cache string) Paths {
	t.Helper()
	paths, err := ensure(t.Context(), w, modules, cache, []Set{hello()})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func says(t *testing.T, binary, want string) {
	t.Helper()
	out, err := exec.Command(binary).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("%s printed %q (%v), want %q", binary, out, err, want)
	}
}

func TestEnsureBuildsOnceAndAgainWhenSourcesChange(t *testing.T) {
	modules, cache := workshop(t)

	var first, second, third strings.Builder
	paths := mustEnsure(t, &first, modules, cache)
	says(t, paths["greet"], "good morning")
	if !strings.Contains(first.String(), "built greet (1 of 2)") || !strings.Contains(first.String(), "built part (2 of 2)") {
		t.Errorf("progress does not name what was built:\n%s", first.String())
	}

	mustEnsure(t, &second, modules, cache)
	if second.Len() > 0 {
		t.Errorf("all was there, yet it said:\n%s", second.String())
	}

	write(t, filepath.Join(modules, "hello", "main.go"), strings.Replace(greetSource, "morning", "evening", 1))
	newPaths := mustEnsure(t, &third, modules, cache)
	says(t, newPaths["greet"], "good evening")
	says(t, paths["greet"], "good morning") // a lab that runs keeps its binary
}

func TestEnsureNeverUsesDamagedBinaries(t *testing.T) {
	damages := map[string]func(t *testing.T, dir string){
		"truncated": func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "greet"), 1000); err != nil {
				t.Fatal(err)
			}
		},
		"one byte differs": func(t *testing.T, dir string) {
			path := filepath.Join(dir, "part")
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			content[len(content)/2] ^= 1
			if err := os.WriteFile(path, content, 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"no manifest": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, manifestName)); err != nil {
				t.Fatal(err)
			}
		},
		"a binary is missing": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "part")); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			modules, cache := workshop(t)
			paths := mustEnsure(t, io.Discard, modules, cache)
			before, err := os.ReadFile(paths["part"])
			if err != nil {
				t.Fatal(err)
			}
			damage(t, filepath.Dir(paths["greet"]))

			var out strings.Builder
			paths = mustEnsure(t, &out, modules, cache)
			says(t, paths["greet"], "good morning")
			if !strings.Contains(out.String(), "built part") {
				t.Errorf("nothing was rebuilt:\n%s", out.String())
			}
			after, err := os.ReadFile(paths["part"])
			if err != nil || string(before) != string(after) {
				t.Errorf("the same sources gave another binary (%v)", err)
			}
		})
	}
}

func TestConcurrentRunsBuildOnce(t *testing.T) {
	modules, cache := workshop(t)
	var outputs [4]strings.Builder
	var group sync.WaitGroup
	for i := range outputs {
		group.Go(func() {
			paths, err := ensure(t.Context(), &outputs[i], modules, cache, []Set{hello()})
			if err != nil {
				t.Error(err)
				return
			}
			says(t, paths["greet"], "good morning")
		})
	}
	group.Wait()
	builds := 0
	for i := range outputs {
		builds += strings.Count(outputs[i].String(), "built greet")
	}
	if builds != 1 {
		t.Errorf("greet was built %d times, want once", builds)
	}
}

func TestBuildErrorNamesBinaryAndCause(t *testing.T) {
	modules, cache := workshop(t)
	write(t, filepath.Join(modules, "hello", "part", "main.go"), "package main\n\nfunc main() { undefinedThing() }\n")
	_, err := ensure(t.Context(), io.Discard, modules, cache, []Set{hello()})
	if err == nil {
		t.Fatal("a module that does not compile was installed")
	}
	for _, want := range []string{"part", "hello/go.mod", "undefined: undefinedThing"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
	if left := installed(t, cache); len(left) > 0 {
		t.Errorf("left in the cache: %q", left)
	}
}

func TestInterruptedRunIsCleanedUp(t *testing.T) {
	modules, cache := workshop(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ensure(ctx, io.Discard, modules, cache, []Set{hello()}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	// What a killed run leaves: it had no chance to tidy up.
	write(t, filepath.Join(cache, unfinished+"hello-1", "greet"), "half a binary")

	says(t, mustEnsure(t, io.Discard, modules, cache)["greet"], "good morning")
	if left := installed(t, cache); len(left) != 1 {
		t.Errorf("in the cache are %q, want one set", left)
	}
}

func TestWaitingForAnotherRunIsSaidAndCanEnd(t *testing.T) {
	cache := t.TempDir()
	held, err := lock(t.Context(), cache, newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var out strings.Builder
	if _, err := lock(ctx, cache, newProgress(&out)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want context.DeadlineExceeded", err)
	}
	if !strings.Contains(out.String(), "another run is building tools") {
		t.Errorf("it waited without saying why: %q", out.String())
	}
}

// installed lists what is in the cache besides its lock.
func installed(t *testing.T, cache string) []string {
	t.Helper()
	entries, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != ".lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

// Every binary must be pinned by its module, or `go mod tidy` there would drop
// what it needs.
func TestEveryBinaryIsPinned(t *testing.T) {
	for _, set := range Sets() {
		module := filepath.Join("modules", set.Name)
		gomod, err := os.ReadFile(filepath.Join(module, "go.mod"))
		if err != nil {
			t.Errorf("set %s: %v", set.Name, err)
			continue
		}
		if !strings.Contains(string(gomod), set.Release+" v") {
			t.Errorf("set %s: its go.mod does not require %s", set.Name, set.Release)
		}
		for _, b := range set.Binaries {
			if b.Package != "." && !slices.Contains(strings.Fields(string(gomod)), b.Package) {
				t.Errorf("set %s: %s is not among the tools of its go.mod", set.Name, b.Package)
			}
		}
	}
}

// The published staging modules must be those of the Kubernetes release.
func TestKubernetesStagingMatchesItsRelease(t *testing.T) {
	content, err := os.ReadFile("modules/kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	release, staging := "", map[string]bool{}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 2 && fields[0] == "k8s.io/kubernetes" && strings.HasPrefix(fields[1], "v"):
			release = fields[1]
		case len(fields) == 4 && fields[1] == "=>":
			staging[fields[3]] = true
		}
	}
	want := "v0" + strings.TrimPrefix(release, "v1")
	if len(staging) != 1 || !staging[want] {
		t.Errorf("kubernetes %s goes with staging modules %s; replaced by %v", release, want, staging)
	}
}

func TestChooseRefusesUnknownSets(t *testing.T) {
	_, err := choose(Sets(), []string{"flanel"})
	if err == nil || !strings.Contains(err.Error(), `"flanel"`) || !strings.Contains(err.Error(), "flannel") {
		t.Errorf("error should name the mistake and the choice: %v", err)
	}
	all, err := choose(Sets(), nil)
	if err != nil || slices.ContainsFunc(all, func(s Set) bool { return s.OnDemand }) {
		t.Errorf("without names: %v, %v; want all sets but those on demand", all, err)
	}
}

func TestProgressLine(t *testing.T) {
	p := &progress{done: 1, total: 9}
	apiserver := Binary{Name: "kube-apiserver", Typical: 5 * time.Minute}
	bridge := Binary{Name: "bridge", Typical: 20 * time.Second}
	for _, c := range []struct {
		b       Binary
		elapsed time.Duration
		want    string
	}{
		{apiserver, 0, "building kube-apiserver (1 of 9, about 5 min on 2 cores)"},
		{apiserver, 80 * time.Second, "building kube-apiserver (1 of 9, about 5 min on 2 cores) … 1m20s"},
		{bridge, 2 * time.Second, "building bridge (1 of 9, about 20 s on 2 cores) … 2s"},
	} {
		if got := p.line(c.b, c.elapsed); got != c.want {
			t.Errorf("after %s: %q, want %q", c.elapsed, got, c.want)
		}
	}
}

// A log shows life without being flooded: here every 10 ms instead of 15 s.
func TestProgressGoesOnWhileABinaryIsBuilt(t *testing.T) {
	var out strings.Builder
	p := &progress{w: &out, every: 10 * time.Millisecond, total: 1}
	failure := fmt.Errorf("no space left")
	if err := p.during(Binary{Name: "slow", Typical: time.Minute}, func() error {
		time.Sleep(100 * time.Millisecond)
		return failure
	}); err != failure {
		t.Errorf("error is %v, want that of the work", err)
	}
	if n := strings.Count(out.String(), "building slow"); n < 3 {
		t.Errorf("%d lines in ten periods:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "not built: slow") {
		t.Errorf("the failure is not told:\n%s", out.String())
	}
}

// Sources that a program reads when it runs come from the module that it is
// built from, and a damage is mended as a binary's is.
func TestEnsureKeepsTreesBesideTheBinaries(t *testing.T) {
	modules, cache := workshop(t)
	write(t, filepath.Join(modules, "hello", "text", "deep", "a.h"), "wanted")
	write(t, filepath.Join(modules, "hello", "text", "tests", "b.h"), "not wanted")
	set := hello()
	set.Release = "example.org/hello"
	set.Trees = []Tree{{Name: "headers", From: "text", Without: []string{"tests"}}}

	for _, when := range []string{"built", "used", "damaged"} {
		paths, err := ensure(t.Context(), io.Discard, modules, cache, []Set{set})
		if err != nil {
			t.Fatal(err)
		}
		kept := filepath.Join(paths["headers"], "deep", "a.h")
		if text, err := os.ReadFile(kept); err != nil || string(text) != "wanted" {
			t.Errorf("%s: %s has %q, %v", when, kept, text, err)
		}
		if _, err := os.Stat(filepath.Join(paths["headers"], "tests")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: tests are there: %v", when, err)
		}
		if when == "used" {
			write(t, kept, "changed")
		}
	}
}
