package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// group is a directory of the cgroup2 hierarchy. It is how a lab knows its
// processes: they are born in it, their children stay in it, and a process id
// that was recycled by a stranger is not in it.
type group string

// labGroups is the parent of every lab's group on this machine.
func labGroups() (group, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// "36 35 0:31 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw"
		mount, source, ok := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mount); ok && strings.HasPrefix(source, "cgroup2 ") && len(fields) > 4 {
			return group(filepath.Join(fields[4], "kilolab")), nil
		}
	}
	return "", errors.New("no cgroup2 hierarchy is mounted: the lab keeps track of its processes by it; mount one with: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
}

func (g group) sub(names ...string) group {
	return group(filepath.Join(append([]string{string(g)}, names...)...))
}

// exists tells whether the group was made, processes or not.
func (g group) exists() bool {
	_, err := os.Stat(string(g))
	return err == nil
}

// pids lists the processes of the group and all groups below, none if there is
// no such group. Zombies are not listed.
func (g group) pids() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(string(g), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed under us, or never made
		}
		if err != nil || !d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		for _, line := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				return fmt.Errorf("%s/cgroup.procs: %w", path, err)
			}
			if pid != 0 { // 0: in a pid namespace that we cannot see
				pids = append(pids, pid)
			}
		}
		return err
	})
	slices.Sort(pids)
	return pids, err
}

// pid is the one process of a daemon's group, 0 if it does not run.
func (g group) pid() int {
	pids, err := g.pids()
	if err != nil || len(pids) == 0 {
		return 0
	}
	return pids[0]
}

// signal sends sig to every process of the group. The process is pinned by a
// pidfd before its membership is checked, so an id recycled in between is never
// hit.
func (g group) signal(sig unix.Signal) error {
	pids, err := g.pids()
	if err != nil {
		return err
	}
	var problems []error
	for _, pid := range pids {
		if err := g.signalOne(pid, sig); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func (g group) signalOne(pid int, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil // gone
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if now, err := g.pids(); err != nil || !slices.Contains(now, pid) {
		return err // no longer ours
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: signal %v: %w", pid, sig, err)
	}
	return nil
}

// waitEmpty waits until no process is left, at most for the given time.
func (g group) waitEmpty(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return poll(ctx, 5*time.Millisecond, func() bool {
		pids, err := g.pids()
		return err == nil && len(pids) == 0
	}) == nil
}

// kill ends every process of the group at once and returns when they are gone.
func (g group) kill(ctx context.Context) error {
	// New children may be born between listing and killing: repeat.
	for range 200 {
		if err := g.signal(unix.SIGKILL); err != nil {
			return err
		}
		if g.waitEmpty(ctx, 50*time.Millisecond) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	pids, _ := g.pids()
	return fmt.Errorf("%s: processes %v survive SIGKILL", g, pids)
}

// remove kills what is in the group and takes the group away.
func (g group) remove(ctx context.Context) error {
	if !g.exists() {
		return nil
	}
	if err := g.kill(ctx); err != nil {
		return err
	}
	var dirs []string
	err := filepath.WalkDir(string(g), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		// Busy for a moment after its last process is gone.
		err := poll(ctx, 5*time.Millisecond, func() bool {
			err = os.Remove(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// poll calls ready until it returns true or ctx is done.
func poll(ctx context.Context, every time.Duration, ready func() bool) error {
	for {
		if ready() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}
