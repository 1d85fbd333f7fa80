package identity_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kilo-overlay/kilo/core/identity"
)

func TestReadOnlyDirectory(t *testing.T) {
	dir := readOnly(t)
	_, created, err := identity.Load(filepath.Join(dir, "key"))
	if created || !(errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission)) {
		t.Fatalf("created %v, error %v: want a read-only error", created, err)
	}
	if !strings.Contains(err.Error(), "writable directory") {
		t.Errorf("the error does not say what is needed: %v", err)
	}
}

// readOnly returns a directory in which nobody, root included, can make a file.
func readOnly(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}
