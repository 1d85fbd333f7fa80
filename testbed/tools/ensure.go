package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Paths holds the absolute path of every binary by its name.
type Paths map[string]string

// CNIDir is the directory of the CNI plugins, as CNI_PATH wants it.
func (p Paths) CNIDir() string { return filepath.Dir(p[CNIBridge]) }

// Ensure returns the paths of the binaries of the named sets, or of all sets
// that are not on demand, and builds those that the cache lacks. That takes
// some 20 minutes on two cores the first time and no second afterwards; w
// receives lines of progress, and nothing when all is there.
//
// It must run inside the source tree, or from a binary in it. It may be called
// from several processes at a time: one builds, the others wait for it. When
// ctx ends, the compiler is stopped and what is half built is never used.
func Ensure(ctx context.Context, w io.Writer, names ...string) (Paths, error) {
	sets, err := choose(Sets(), names)
	if err != nil {
		return nil, err
	}
	root, err := SourceRoot()
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	return ensure(ctx, w, filepath.Join(root, "testbed", "tools", "modules"), cache, sets)
}

// ensure is Ensure for the given sets, whose modules are directories of
// modules, in the given cache.
func ensure(ctx context.Context, w io.Writer, modules, cache string, sets []Set) (Paths, error) {
	gotool, err := findGo()
	if err != nil {
		return nil, err
	}
	paths := Paths{}
	var missing []entry
	for _, set := range sets {
		module := filepath.Join(modules, set.Name)
		key, err := gotool.key(ctx, module, set)
		if err != nil {
			return nil, err
		}
		e := entry{set: set, module: module, dir: filepath.Join(cache, set.Name+"-"+key)}
		if !e.use(paths) {
			missing = append(missing, e)
		}
	}
	if len(missing) == 0 {
		return paths, nil
	}

	p := newProgress(w)
	unlock, err := lock(ctx, cache, p)
	if err != nil {
		return nil, err
	}
	defer unlock.Close()

	// Whoever held the lock before us may have built them.
	var build []entry
	for _, e := range missing {
		if !e.use(paths) {
			build = append(build, e)
			p.total += len(e.set.Binaries)
		}
	}
	for _, e := range build {
		if err := e.build(ctx, gotool, cache, unlock, p); err != nil {
			return nil, err
		}
		if !e.use(paths) {
			return nil, fmt.Errorf("tool set %s was just built but %s does not match its manifest: is the disk damaged?", e.set.Name, e.dir)
		}
	}
	return paths, nil
}

// CacheDir is where the binaries are kept: $KILO_LAB_CACHE, or kilo-lab in the
// user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("KILO_LAB_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the tools' cache: %w; set KILO_LAB_CACHE to a directory", err)
	}
	return filepath.Join(dir, "kilo-lab"), nil
}

// SourceRoot is the directory of the product's go.mod: the nearest one above
// the working directory, else above the running binary.
func SourceRoot() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && isProduct(string(content)) {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("the source tree of kilo is neither above the working directory nor above this binary; " +
		"the lab builds its tools from it: run from inside the clone")
}

func isProduct(gomod string) bool {
	for line := range strings.Lines(gomod) {
		if strings.TrimSpace(line) == "module github.com/kilo-overlay/kilo" {
			return true
		}
	}
	return false
}
