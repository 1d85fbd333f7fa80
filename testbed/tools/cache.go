package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	manifestName = "manifest.json"
	// unfinished starts the name of a directory that is being filled.
	unfinished = ".building-"
)

// entry is one set and its place in the cache.
type entry struct {
	set    Set
	module string // directory of its go.mod
	dir    string // where its binaries are, once complete
}

// manifest maps the name of a binary or tree to the SHA-256 of its content, in
// hex.
type manifest map[string]string

// use adds the set's binaries and trees to paths and reports whether all are there and
// intact.
func (e entry) use(paths Paths) bool {
	content, err := os.ReadFile(filepath.Join(e.dir, manifestName))
	if err != nil {
		return false
	}
	var recorded manifest
	if err := json.Unmarshal(content, &recorded); err != nil {
		return false
	}
	for _, b := range e.set.Binaries {
		digest, err := digestFile(filepath.Join(e.dir, b.Name))
		if err != nil || digest != recorded[b.Name] {
			return false
		}
	}
	for _, t := range e.set.Trees {
		digest, err := digestTree(filepath.Join(e.dir, t.Name))
		if err != nil || digest != recorded[t.Name] {
			return false
		}
	}
	for _, b := range e.set.Binaries {
		paths[b.Name] = filepath.Join(e.dir, b.Name)
	}
	for _, t := range e.set.Trees {
		paths[t.Name] = filepath.Join(e.dir, t.Name)
	}
	return true
}

// build fills the entry. The caller holds the cache's lock.
func (e entry) build(ctx context.Context, gotool gotool, cache string, held *os.File, p *progress) error {
	// As we hold the lock, these can only be what an interrupted run left.
	stale, err := filepath.Glob(filepath.Join(cache, unfinished+"*"))
	if err != nil {
		return fmt.Errorf("look for unfinished builds in %s: %w", cache, err)
	}
	for _, dir := range stale {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove an unfinished build: %w", err)
		}
	}
	tmp, err := os.MkdirTemp(cache, unfinished+e.set.Name+"-")
	if err != nil {
		return fmt.Errorf("make a directory to build in: %w", err)
	}
	defer os.RemoveAll(tmp) // nothing is left to remove after the rename

	recorded := manifest{}
	for _, b := range e.set.Binaries {
		out := filepath.Join(tmp, b.Name)
		err := p.during(b, func() error { return gotool.build(ctx, e.module, e.set, b, out, held) })
		if err != nil {
			return err
		}
		if recorded[b.Name], err = digestFile(out); err != nil {
			return fmt.Errorf("read the new %s: %w", b.Name, err)
		}
	}
	for _, t := range e.set.Trees {
		out := filepath.Join(tmp, t.Name)
		if err := gotool.sources(ctx, e.module, e.set, t, out); err != nil {
			return fmt.Errorf("copy the sources %s: %w", t.Name, err)
		}
		if recorded[t.Name], err = digestTree(out); err != nil {
			return err
		}
	}
	content, err := json.MarshalIndent(recorded, "", "  ")
	if err != nil {
		return fmt.Errorf("write the manifest of %s: %w", e.set.Name, err)
	}
	if err := os.WriteFile(filepath.Join(tmp, manifestName), append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the manifest of %s: %w", e.set.Name, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // MkdirTemp makes it private
		return err
	}
	// What stands there did not match its manifest, or we would not be here.
	// Programs that run from it keep their files.
	if err := os.RemoveAll(e.dir); err != nil {
		return fmt.Errorf("remove the damaged tool set: %w", err)
	}
	if err := os.Rename(tmp, e.dir); err != nil {
		return fmt.Errorf("install tool set %s: %w", e.set.Name, err)
	}
	return nil
}

// lock waits until no other process works on the cache. Closing the returned
// file, or the end of every process that holds it, gives the lock back.
func lock(ctx context.Context, cache string, p *progress) (*os.File, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the tools' cache: %w; KILO_LAB_CACHE can name another place", err)
	}
	f, err := os.OpenFile(filepath.Join(cache, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the tools' cache: %w", err)
	}
	said := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the tools' cache %s: %w", cache, err)
		}
		if !said {
			p.say("another run is building tools, waiting for it (lock %s)", f.Name())
			said = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another run that builds tools (lock %s): %w", f.Name(), ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// copyTree copies the regular files below from, without the directories of the
// given names, for everybody to read and the owner to change.
func copyTree(from, to string, without []string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && slices.Contains(without, filepath.ToSlash(name)):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, 0o644)
	})
}

func digestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// digestTree returns a digest of the names and contents of all files below
// dir.
func digestTree(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // in lexical order
		if err != nil || d.IsDir() {
			return err
		}
		// Editors' hidden files do not go into a build.
		if strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		digest, err := digestFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %s\n", digest, filepath.ToSlash(name))
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read the module %s: %w", dir, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
