package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const bpfSource = `// a comment
#include "ep_config.h"
__attribute__((section("tc"), used)) int pass(void *ctx) { return RESULT; }
`

// compileBPF compiles text as an agent does its programs, with a header that
// lies in a directory named after a digest.
func compileBPF(t *testing.T, cache, text, digest string) []byte {
	t.Helper()
	if err := checkCiliumNeeds(); err != nil {
		if why := os.Getenv("KILO_LAB_SKIP"); why != "" {
			t.Skipf("%v (KILO_LAB_SKIP=%s)", err, why)
		}
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(cache), "templates", strings.Repeat(digest, 64))
	source := filepath.Join(filepath.Dir(cache), "prog.c")
	for path, content := range map[string]string{source: text, filepath.Join(dir, "ep_config.h"): "#define RESULT 0\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	object, err := compileOnce(t.Context(), cache, []string{"-I" + dir, "-g", "-O2", "--target=bpf", "-c", source, "-o", "-"})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func kept(t *testing.T, cache string) []string {
	t.Helper()
	objects, err := filepath.Glob(filepath.Join(cache, "*.o"))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// One source in the eyes of the compiler is compiled once, and another anew.
func TestClangRemembers(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	first := compileBPF(t, cache, bpfSource, "a")
	if !bytes.HasPrefix(first, []byte("\x7fELF")) {
		t.Fatalf("no object: %.20q", first)
	}
	// So that it shows where the next ones come from.
	if err := os.WriteFile(kept(t, cache)[0], []byte("remembered"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, object := range map[string][]byte{
		"the same again":    compileBPF(t, cache, bpfSource, "a"),
		"another directory": compileBPF(t, cache, bpfSource, "b"),
		"another comment":   compileBPF(t, cache, strings.Replace(bpfSource, "a comment", "something else", 1), "a"),
	} {
		if string(object) != "remembered" {
			t.Errorf("%s was compiled anew", what)
		}
	}
	other := compileBPF(t, cache, strings.Replace(bpfSource, "RESULT", "RESULT + 1", 1), "a")
	if string(other) == "remembered" || bytes.Equal(other, first) {
		t.Error("another program has the first one's object")
	}
	if n := len(kept(t, cache)); n != 2 {
		t.Errorf("%d objects are kept, want 2", n)
	}
}

func TestClangForgetsWhatNobodyAsksFor(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	compileBPF(t, cache, bpfSource, "a")
	old := time.Now().Add(-keepObjects - time.Hour)
	if err := os.Chtimes(kept(t, cache)[0], old, old); err != nil {
		t.Fatal(err)
	}
	compileBPF(t, cache, bpfSource+"// and another line\nint more;\n", "a")
	if left := kept(t, cache); len(left) != 1 {
		t.Errorf("kept are %v, want the new one alone", left)
	}
}
