package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// buildHelper puts the lab's own helper (kubelet and pod process) beside its
// other files: the running program when that is kilolab, else one built from
// the source tree, as in a test.
func (l *Lab) buildHelper(ctx context.Context) error {
	if exe, err := os.Executable(); err == nil && filepath.Base(exe) == "kilolab" {
		return copyFile(exe, l.path("bin", "kilolab"))
	}
	return l.goBuild(ctx, "./testbed/kilolab", l.path("bin", "kilolab"))
}

// goBuild builds a command of the source tree. It is built at one place for all
// labs, where the Go command sees at a glance that nothing has changed, and
// copied from there.
func (l *Lab) goBuild(ctx context.Context, pkg, out string) error {
	root, err := tools.SourceRoot()
	if err != nil {
		return err
	}
	cache, err := tools.CacheDir()
	if err != nil {
		return err
	}
	shared := filepath.Join(cache, "built", filepath.Base(pkg))
	if err := os.MkdirAll(filepath.Dir(shared), 0o755); err != nil {
		return err
	}
	// One at a time, or a copy may be taken of what another is writing.
	held, err := os.OpenFile(shared+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	l.say("building %s", pkg)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", shared, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as in an image that holds nothing else
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
	}
	return copyFile(shared, out)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	fresh := to + ".new" // the old one may be running
	out, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(fresh, to)
}
