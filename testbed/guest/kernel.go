package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// metaPackage is the Debian package that depends on the newest kernel of its
// kind: a small one, for virtual machines, with every module that we want.
const metaPackage = "linux-image-cloud-amd64"

// Kernel is one that is unpacked.
type Kernel struct {
	Version string // as uname -r says
	Image   string // file that QEMU boots
	Modules string // directory lib/modules/VERSION
}

// FindKernel returns the kernel in the tools' cache. Where there is none it
// downloads and unpacks Debian's, some 30 MB, and says so by say.
func FindKernel(ctx context.Context, say func(format string, args ...any)) (*Kernel, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("guests are amd64 machines so far, and their programs are built here: this is %s", runtime.GOARCH)
	}
	cache, err := tools.CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "guest-kernel")
	if k, err := openKernel(dir); err == nil {
		return k, nil
	}
	began := time.Now()
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	fresh, err := os.MkdirTemp(cache, ".guest-kernel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(fresh)
	if err := unpackKernel(ctx, fresh); err != nil {
		return nil, fmt.Errorf("the guest's kernel: %w", err)
	}
	k, err := openKernel(fresh)
	if err != nil {
		return nil, fmt.Errorf("the guest's kernel: %w", err)
	}
	// Whole or not at all. Another run may have been faster: then its is used.
	if err := os.Rename(fresh, dir); err != nil {
		if k, err := openKernel(dir); err == nil {
			return k, nil
		}
		// What stands there is of no use, or it would have been taken before.
		if err := errors.Join(os.RemoveAll(dir), os.Rename(fresh, dir)); err != nil {
			return nil, err
		}
	}
	say("kernel %s downloaded and unpacked in %.0f s", k.Version, time.Since(began).Seconds())
	return openKernel(dir)
}

// openKernel finds the kernel that was unpacked to dir.
func openKernel(dir string) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("%s: %d kernels, want one", dir, len(images))
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	for _, lib := range []string{"lib", "usr/lib"} {
		modules := filepath.Join(dir, lib, "modules", version)
		if _, err := os.Stat(filepath.Join(modules, "kernel")); err == nil {
			return &Kernel{Version: version, Image: images[0], Modules: modules}, nil
		}
	}
	return nil, fmt.Errorf("%s: kernel %s is without modules", dir, version)
}

// unpackKernel downloads the package of the kernel to dir and unpacks it there.
func unpackKernel(ctx context.Context, dir string) error {
	name, err := imagePackage(ctx)
	if err != nil {
		// A fresh machine has no lists yet.
		if _, err := command(ctx, dir, "apt-get", "-q", "update"); err != nil {
			return err
		}
		if name, err = imagePackage(ctx); err != nil {
			return err
		}
	}
	// Not as apt's own user, to whom our directory is closed.
	if _, err := command(ctx, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", name); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages", name, len(packages))
	}
	if _, err := command(ctx, dir, "dpkg", "-x", packages[0], dir); err != nil {
		return err
	}
	return os.Remove(packages[0])
}

// imagePackage is the package that holds the kernel which metaPackage stands for.
func imagePackage(ctx context.Context) (string, error) {
	out, err := command(ctx, "/", "apt-cache", "depends", "--important", metaPackage)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "linux-image-") {
			return name, nil
		}
	}
	return "", fmt.Errorf("apt-cache knows of no kernel that %s stands for; are Debian's package sources set up?", metaPackage)
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, problem strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}
