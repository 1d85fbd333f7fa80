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

// A lab that is down has left nothing on the machine.
func TestDownLeavesNothing(t *testing.T) {
	need(t)
	name := labName(t)
	before := traces(t, name)
	l := upNamed(t, name, islands())
	while := traces(t, name)
	if slices.Equal(before, while) {
		t.Fatal("a lab that is up leaves no traces: this test sees nothing")
	}
	held := namespaces(t, l)

	ok(t, l.Down(t.Context()))
	if after := traces(t, name); !slices.Equal(before, after) {
		t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	for pid, ns := range processNamespaces(t) {
		if where, yes := held[ns]; yes {
			t.Errorf("process %s still holds %s", pid, where)
		}
	}
	if _, err := lab.Open(name); !errors.Is(err, lab.ErrNoLab) {
		t.Errorf("Open after Down: %v", err)
	}
}

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

// Two labs with equal names inside live side by side, and the end of one does
// not touch the other.
func TestTwoLabsAtOnce(t *testing.T) {
	beside(t)
	one := upNamed(t, labName(t)+"-one", islands())
	two := upNamed(t, labName(t)+"-two", islands())
	for _, l := range []*lab.Lab{one, two} {
		if m := must(l.Matrix(t.Context()))(t); m.Passed() != 10 {
			t.Errorf("lab %s: %s, want the 10 within locations\n%s", l.Name, m.Summary(), m)
		}
	}
	ok(t, one.Down(t.Context()))
	if m := must(two.Matrix(t.Context()))(t); m.Passed() != 10 {
		t.Errorf("after the other's end: %s, want 10\n%s", m.Summary(), m)
	}
}

// A machine that loses power falls silent at once, keeps its disk, and comes
// back as a working node.
func TestPowerCut(t *testing.T) {
	beside(t)
	l := up(t, islands())
	a2 := l.Machine("a2")
	must(a2.Shell(t.Context(), "mkdir -p /var/lib/kilo && echo kept >/var/lib/kilo/file; echo lost >/run/file"))(t)

	ok(t, a2.PowerOff(t.Context()))
	if err := l.Pod("a1").Ping(t.Context(), l.Pod("a2").Addr); err == nil {
		t.Error("a pod of a dead machine answers")
	}
	ok(t, a2.PowerOn(t.Context()))
	eventually(t, 10*time.Second, func() error { return l.Pod("a1").Ping(t.Context(), l.Pod("a2").Addr) })
	if got := must(a2.Shell(t.Context(), "cat /var/lib/kilo/file; ls /run/file 2>/dev/null || true"))(t); got != "kept\n" {
		t.Errorf("disk and /run after the power cut: %q", got)
	}
}

// A node that joins works, and one that leaves is gone from the cluster.
func TestJoinAndLeave(t *testing.T) {
	beside(t)
	l := up(t, islands())
	must(l.Join(t.Context(), "b", lab.Node{Name: "b3", Pods: 1}))(t)
	eventually(t, 10*time.Second, func() error { return l.Pod("b3").Ping(t.Context(), l.Pod("b1").Addr) })

	ok(t, l.Leave(t.Context(), "b3"))
	if out := must(l.Kubectl(t.Context(), "get", "nodes,pods", "--output=name"))(t); strings.Contains(out, "b3") {
		t.Errorf("b3 is still there:\n%s", out)
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
