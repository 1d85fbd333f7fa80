//go:build linux

// Command init is the first process of a guest: it loads the modules and runs
// the commands that /etc/guest.json names, says how each ended, and powers off.
// See package guest, which has the twins of its types and marks.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

type plan struct {
	Modules  []string `json:"modules"`
	Commands []struct {
		Args []string `json:"args"`
		Env  []string `json:"env"`
	} `json:"commands"`
}

func main() {
	// Whatever happens, the machine must not stand still.
	defer func() {
		if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
			fmt.Println("power off:", err)
		}
	}()
	if err := run(); err != nil {
		fmt.Println("init:", err)
		return
	}
	fmt.Println("@guest done")
}

func run() error {
	if err := mounts(); err != nil {
		return err
	}
	text, err := os.ReadFile("/etc/guest.json")
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	for _, m := range p.Modules {
		if err := load(m); err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	for i, c := range p.Commands {
		fmt.Printf("\n@guest start %d\n", i)
		began := time.Now()
		cmd := exec.Command(c.Args[0], c.Args[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdout, os.Stdout, "/root"
		cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}, c.Env...)
		code := 0
		if err := cmd.Run(); err != nil {
			fmt.Println(err)
			code = -1
			if exit := new(exec.ExitError); errors.As(err, &exit) {
				code = exit.ExitCode()
			}
		}
		fmt.Printf("\n@guest end %d code %d ms %d\n", i, code, time.Since(began).Milliseconds())
	}
	return nil
}

func mounts() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return nil
}

func load(module string) error {
	f, err := os.Open(module)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
