package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

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
	object, err := compileOnce(ctx, cache, args)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(object)
	return err
}

func clang(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, clangDir+"/clang", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return out, nil
}

// compileOnce returns what clang writes to standard output for args.
func compileOnce(ctx context.Context, cache string, args []string) ([]byte, error) {
	key, err := compilationKey(ctx, args)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	if err := forgetUnused(cache); err != nil {
		return nil, err
	}
	path := filepath.Join(cache, key+".o")
	held, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", held.Name(), err)
	}
	if object, err := os.ReadFile(path); err == nil {
		now := time.Now()
		return object, os.Chtimes(path, now, now)
	}
	object, err := clang(ctx, args...)
	if err != nil {
		return nil, err
	}
	// There whole or not at all: we may be killed.
	fresh, err := os.CreateTemp(cache, "new-")
	if err != nil {
		return nil, err
	}
	defer fresh.Close()
	if _, err := fresh.Write(object); err != nil {
		return nil, err
	}
	return object, os.Rename(fresh.Name(), path)
}

// compilationKey tells compilations with different results apart.
func compilationKey(ctx context.Context, args []string) (string, error) {
	version, err := clang(ctx, "--version")
	if err != nil {
		return "", err
	}
	source, err := clang(ctx, append(slices.Clone(args), "-E")...)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(version)
	h.Write(templateDir.ReplaceAll(fmt.Appendf(nil, "%q\n", args), nil))
	h.Write(templateDir.ReplaceAll(source, nil))
	return hex.EncodeToString(h.Sum(nil)), nil
}

// keepObjects is how long a result is kept that nobody asks for.
const keepObjects = 14 * 24 * time.Hour

// forgetUnused removes results that nobody has asked for in a long time.
func forgetUnused(cache string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > keepObjects {
			err = os.Remove(filepath.Join(cache, e.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another was faster
			return err
		}
	}
	return nil
}
