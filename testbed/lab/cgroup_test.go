package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A group's signals reach its processes and their children, and nobody else,
// whatever their number.
func TestGroupEndsItsOwnAndNobodyElse(t *testing.T) {
	if err := Check(); err != nil {
		if why := os.Getenv("KILO_LAB_SKIP"); why != "" {
			t.Skipf("no lab on this machine (KILO_LAB_SKIP=%s): %v", why, err)
		}
		t.Fatal(err)
	}
	groups, err := labGroups()
	if err != nil {
		t.Fatal(err)
	}
	ours := groups.sub(fmt.Sprintf("test-%d", os.Getpid()))
	defer os.Remove(string(groups)) // if we made it
	defer ours.remove(t.Context())

	stranger := exec.Command("/usr/bin/sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()

	parent, err := process{
		group: ours.sub("daemon"),
		argv:  []string{"/usr/bin/dash", "-c", "sleep 60 & sleep 60 & wait"},
		log:   filepath.Join(t.TempDir(), "log"),
	}.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := poll(t.Context(), time.Millisecond, func() bool {
		pids, _ := ours.pids()
		return len(pids) == 3
	}); err != nil {
		t.Fatal(err)
	}
	if pids, err := ours.pids(); err != nil || !slices.Contains(pids, parent) {
		t.Fatalf("%v lacks %d (%v)", pids, parent, err)
	}

	if err := ours.signalOne(stranger.Process.Pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := ours.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ours.exists() {
		t.Errorf("%s is still there", ours)
	}
	if err := stranger.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("a process outside of the group was ended: %v", err)
	}
}
