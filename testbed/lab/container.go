package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// containerSpec is what a container runtime would be told of an agent's container:
// what it sees, what it may, what runs.
type containerSpec struct {
	Root         string         `json:"root"`   // an empty directory
	Binary       string         `json:"binary"` // all that the image holds
	Mounts       []containerDir `json:"mounts"`
	Args         []string       `json:"args"` // a path inside, and arguments
	Env          []string       `json:"env"`
	Capabilities []string       `json:"capabilities"`
}

// containerDir is a file or directory of the node in a container.
type containerDir struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Type is a hostPath's: DirectoryOrCreate, FileOrCreate, File …; "": as it is.
	Type string `json:"type,omitempty"`
}

// imageBinary is where the image has kg.
const imageBinary = "/usr/bin/kg"

// capabilities that a container of ours may be given, by Kubernetes' names.
var capabilityNumbers = map[string]int{"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW}

// BecomeContainer replaces the running program by a container's, as a runtime
// does: with a read-only root of its own that holds the image and the mounts,
// /proc/sys read-only, and no capability, now or later, beside those granted. The
// network stays that of the node (hostNetwork), and so do process ids. Not done is
// what the runtime's default seccomp profile and device list do.
func BecomeContainer(specFile string) error {
	text, err := os.ReadFile(specFile)
	if err != nil {
		return err
	}
	var c containerSpec
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s: %w", specFile, err)
	}
	// Namespaces and capabilities are a thread's, and this one becomes the program.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := c.makeRoot(); err != nil {
		return err
	}
	if err := c.dropCapabilities(); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", c.Args[0], syscall.Exec(c.Args[0], c.Args, c.Env))
}

func (c *containerSpec) makeRoot() error {
	var failed error
	do := func(what string, err error) {
		if err != nil && failed == nil {
			failed = fmt.Errorf("container root: %s: %w", what, err)
		}
	}
	in := func(path string) string { return filepath.Join(c.Root, path) }
	bind := func(source, target string, readOnly bool) {
		do("bind "+source, unix.Mount(source, in(target), "", unix.MS_BIND|unix.MS_REC, ""))
		if readOnly {
			do("make "+target+" read-only", unix.Mount("", in(target), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}
	}
	touch := func(path string) {
		do("make "+path, os.MkdirAll(filepath.Dir(path), 0o755))
		f, err := os.OpenFile(path, os.O_CREATE, 0o600)
		do("make "+path, err)
		_ = f.Close()
	}
	do("make mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	do("make it", os.MkdirAll(c.Root, 0o755))
	do("mount it", unix.Mount("tmpfs", c.Root, "tmpfs", 0, "mode=755"))
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		do("make "+dir, os.MkdirAll(in(dir), 0o755))
	}
	touch(in(imageBinary))
	bind(c.Binary, imageBinary, true)
	do("make wg", os.Symlink(filepath.Base(imageBinary), in(filepath.Join(filepath.Dir(imageBinary), "wg"))))
	bind("/proc", "/proc", false)
	bind("/proc/sys", "/proc/sys", true)
	bind("/sys", "/sys", true)
	for _, device := range []string{"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"} {
		touch(in(device))
		bind(device, device, false)
	}
	for _, m := range c.Mounts {
		switch m.Type {
		case "DirectoryOrCreate":
			do("make "+m.Source, os.MkdirAll(m.Source, 0o755))
		case "FileOrCreate":
			touch(m.Source)
		}
		info, err := os.Stat(m.Source)
		do("mount "+m.Target, err)
		if err != nil {
			break
		}
		if info.IsDir() {
			do("make "+m.Target, os.MkdirAll(in(m.Target), 0o755))
		} else {
			touch(in(m.Target))
		}
		bind(m.Source, m.Target, m.ReadOnly)
	}
	do("make it read-only", unix.Mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	do("enter it", unix.Chroot(c.Root))
	do("enter it", unix.Chdir("/"))
	return failed
}

// dropCapabilities leaves this thread, and the program that it becomes, those of
// the container; for root that is what the bounding set allows.
func (c *containerSpec) dropCapabilities() error {
	granted := map[int]bool{}
	var bits [2]uint32
	for _, name := range c.Capabilities {
		n, ok := capabilityNumbers[name]
		if !ok {
			return fmt.Errorf("container: no agent of ours needs the capability %s", name)
		}
		granted[n] = true
		bits[n/32] |= 1 << (n % 32)
	}
	for n := 0; n <= unix.CAP_LAST_CAP; n++ {
		if granted[n] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("container: drop capability %d: %w", n, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		data[i] = unix.CapUserData{Effective: bits[i], Permitted: bits[i]}
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("container: set capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("container: no new privileges: %w", err)
	}
	return nil
}
