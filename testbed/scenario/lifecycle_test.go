package scenario

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// An Up that is killed in the middle, wherever that is, is cleaned up by Down.
func TestInterruptedUpIsCleanedUp(t *testing.T) {
	need(t)
	kilolab := filepath.Join(t.TempDir(), "kilolab")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", kilolab, "../kilolab").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name := labName(t)
	before := traces(t, name)
	for _, after := range []time.Duration{100, 250, 500, 1500, 3000, 4500} {
		up := exec.Command(kilolab, "up", "--no-kg", "--name", name)
		ok(t, up.Start())
		time.Sleep(after * time.Millisecond)
		up.Process.Kill()
		up.Wait()

		ok(t, lab.Down(t.Context(), name))
		if now := traces(t, name); !slices.Equal(before, now) {
			t.Errorf("killed after %d ms; left:\n%s", after, strings.Join(now, "\n"))
		}
	}
}

// traces is what a lab could leave on this machine, outside of the namespaces
// that its processes hold.
func traces(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	shell := func(script string) {
		out, err := exec.Command("/bin/sh", "-euc", script).Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		found = append(found, strings.Fields(string(out))...)
	}
	shell(`ip -brief link | sed 's/ .*//; s/^/link:/'`)
	shell(`ip netns list | sed 's/ .*//; s/^/netns:/'`)
	// Others mount things on this machine too: those count that name the lab, or
	// stand where its machines have something of their own.
	shell(`cut -d' ' -f5 /proc/self/mountinfo | sed -nE '\#` + name + `|^/(var/)?run/(netns|flannel|wireguard|cilium)|^/var/lib/(kilo|cni)|^/etc/|^/sys/fs/bpf#s/^/mount:/p'`)
	shell(`find /sys/fs/cgroup -type d -path '*kilolab*' -name '` + name + `*' 2>/dev/null || true`)
	shell(`find /sys/fs/bpf -mindepth 1`)
	// What Cilium would set for the whole machine.
	shell(`sysctl -e kernel.unprivileged_bpf_disabled kernel.timer_migration net.core.bpf_jit_enable | tr -d ' '`)
	dir := must(lab.Dir())(t)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), name) {
			found = append(found, "file:"+e.Name())
		}
	}
	// Whoever names the lab on its command line, or has its working directory
	// or a file of the lab open.
	for _, pid := range processes(t) {
		if pid == fmt.Sprint(os.Getpid()) {
			continue
		}
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		groups, _ := os.ReadFile("/proc/" + pid + "/cgroup")
		if len(line) == 0 {
			continue // a zombie that init has yet to reap; it holds nothing
		}
		if strings.Contains(string(line), "/"+name) || strings.Contains(string(groups), "/"+name) {
			found = append(found, "process:"+strings.ReplaceAll(string(line), "\x00", "_"))
		}
	}
	slices.Sort(found)
	return found
}

func processes(t *testing.T) []string {
	t.Helper()
	entries := must(os.ReadDir("/proc"))(t)
	var pids []string
	for _, e := range entries {
		if e.Name()[0] >= '0' && e.Name()[0] <= '9' {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// processNamespaces maps process ids to the identity of their network.
func processNamespaces(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pid := range processes(t) {
		if ns, err := os.Readlink("/proc/" + pid + "/ns/net"); err == nil {
			all[pid] = ns
		}
	}
	return all
}

// namespaces maps the networks of a lab's machines and pods to their names.
func namespaces(t *testing.T, l *lab.Lab) map[string]string {
	t.Helper()
	held := map[string]string{}
	for _, p := range append(l.NodePlaces(), l.PodPlaces()...) {
		ns := must(p.Exec(t.Context(), "/usr/bin/readlink", "/proc/self/ns/net"))(t)
		held[strings.TrimSpace(ns)] = p.Name
	}
	return held
}
