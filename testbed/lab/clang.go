package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// Every Cilium agent compiles three programs when it starts, some of them
// twice, for many seconds each; those of a lab, and of the next lab, are the
// same but for few. So agents find a `clang` that remembers what it made.

// clangDir has the real compiler, by the name that the agent calls.
const clangDir = "/usr/lib/llvm-19/bin"

// writeClang puts the `clang` for this lab's agents into a directory of its own
// and returns that.
func (l *Lab) writeClang() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	dir := l.path("bin", "cilium")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %q clang %q -- \"$@\"\n", l.path("bin", "kilolab"), filepath.Join(cache, "bpf-objects"))
	return dir, os.WriteFile(filepath.Join(dir, "clang"), []byte(script), 0o755)
}

// templateDir is where an agent has a header of its own; the name is a digest of
// all its settings, most of which the compiler never sees.
var templateDir = regexp.MustCompile(`/templates/[0-9a-f]{64}`)

// Clang is clang for one compilation to standard output, or whatever else args
// ask for. It keeps the results in cache, by the preprocessed source and the
// arguments, and lets several callers with the same one wait for the first.
func Clang(ctx context.Context, cache string, args []string) error {
	if !slices.Contains(args, "-c") {
		return syscall.Exec(clangDir+"/clang", append([]string{"clang"}, args...), os.Environ())
	}
	clang := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, clangDir+"/clang", args...)
		cmd.Stderr = os.Stderr
		return cmd.Output()
	}
	source, err := clang(append(slices.Clone(args), "-E")...)
	if err != nil {
		return fmt.Errorf("clang -E: %w", err)
	}
	version, err := clang("--version")
	if err != nil {
		return fmt.Errorf("clang --version: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s%q", version, templateDir.ReplaceAll(fmt.Appendf(nil, "%q", args), nil))
	h.Write(templateDir.ReplaceAll(source, nil))
	path := filepath.Join(cache, hex.EncodeToString(h.Sum(nil))+".o")

	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	held, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", held.Name(), err)
	}
	object, err := os.ReadFile(path)
	if err != nil {
		if object, err = clang(args...); err != nil {
			return fmt.Errorf("clang: %w", err)
		}
		// Whole or not at all: we may be killed.
		if err := os.WriteFile(path+".new", object, 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	_, err = io.Copy(os.Stdout, bytes.NewReader(object))
	return err
}
