package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// The lock files: locked while an agent, or "kg wireguard", runs. What is in
// them means nothing.
const (
	lockFile       = "agent.lock"
	deviceLockFile = "wireguard.lock"
)

// errRuns says that somebody has the lock.
var errRuns = errors.New("kg runs on this node already")

// lock takes one of the node's locks, waiting up to patience for a process that
// is about to end. The kernel releases it with the process, however that ends.
func lock(ctx context.Context, dir, file string, patience time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir=%s: %w", dir, err)
	}
	path := filepath.Join(dir, file)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--state-dir=%s: %w", dir, err)
	}
	for deadline := time.Now().Add(patience); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case time.Now().After(deadline):
			_ = f.Close()
			return nil, fmt.Errorf("%w: it holds %s", errRuns, path)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
