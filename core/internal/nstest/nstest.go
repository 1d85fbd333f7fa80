package nstest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	skipEnv   = "KILO_TEST_SKIP_ROOT"
	insideEnv = "KILO_TEST_INSIDE"
	helperEnv = "KILO_TEST_HELPER"
)

// Main is what TestMain of a package that uses Run calls. Helpers are further
// programs inside the test binary, for Start; what they return is their exit
// code.
func Main(m *testing.M, helpers map[string]func(args []string) int) {
	if os.Getenv(insideEnv) == "new" {
		if err := settle(); err != nil {
			fmt.Fprintln(os.Stderr, "nstest:", err)
			os.Exit(2)
		}
	}
	if name := os.Getenv(helperEnv); name != "" {
		os.Exit(helpers[name](os.Args[1:]))
	}
	os.Exit(m.Run())
}

// Programs are all that the tests may call, iptables and its kin apart. A
// machine made for them, as testbed/guest's, has these and no others; here
// others are out of reach, so that a test which needs one more fails at once.
func Programs() []string {
	return []string{
		"sh", "ip", "bridge", "nft", "conntrack", "ping", "sysctl", "wg",
		"awk", "cat", "cut", "grep", "head", "ls", "mkdir", "rm", "sed", "seq", "sleep", "sort", "tail", "tr", "true", "wc",
	}
}

func iptables() []string {
	var names []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, kind := range []string{"", "-nft", "-legacy"} {
			names = append(names, family+kind, family+kind+"-save", family+kind+"-restore")
		}
	}
	return names
}

// settle makes fresh namespaces fit to live in: a /run of our own (sockets are
// per file system, not per network namespace), loopback up, a PATH that leads to
// Programs.
func settle() error {
	// Before /run is another: a process of a test finds them there already.
	programs := map[string]string{}
	for _, name := range slices.Concat(Programs(), iptables()) {
		path, err := exec.LookPath(name)
		if err != nil {
			continue // who needs it will say so
		}
		if programs[name], err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a private /run: %w", err)
	}
	const bin = "/run/programs"
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	for name, path := range programs {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	if err := os.Setenv("PATH", bin); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Run runs body in namespaces of its own. Tools are programs that it needs.
func Run(t *testing.T, body func(t *testing.T), tools ...string) {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		body(t)
		return
	}
	if reason := os.Getenv(skipEnv); reason != "" {
		t.Skip(reason)
	}
	if os.Geteuid() != 0 {
		t.Fatalf("needs root for network namespaces; set %s=REASON to skip", skipEnv)
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("needs the program %s: %v", tool, err)
		}
	}
	// #nosec G204: the test binary itself.
	cmd := exec.Command(os.Args[0], "-test.run", pattern(t.Name()), "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), insideEnv+"=new")
	cmd.SysProcAttr = freshNamespaces()
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Fatalf("did not run:\n%s", out)
	case testing.Verbose():
		t.Logf("%s", out)
	}
}

func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

func freshNamespaces() *syscall.SysProcAttr {
	// Unshared mounts are made private by the runtime.
	return &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
}

// Process is a helper that runs beside the test.
type Process struct {
	Pid int
	Out *bufio.Scanner // lines of its standard output
	In  io.WriteCloser // its standard input
	cmd *exec.Cmd
}

// Line returns the next line of output; the test fails where there is none.
func (p *Process) Line(t *testing.T) string {
	t.Helper()
	if !p.Out.Scan() {
		t.Fatalf("helper (pid %d) ended without saying what was waited for: %v", p.Pid, p.Out.Err())
	}
	return p.Out.Text()
}

// Kill ends it at once, as a crash would.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_, _ = p.cmd.Process.Wait()
}

// Start starts a helper given to Main in namespaces of its own: another node.
func Start(t *testing.T, helper string, args ...string) *Process {
	t.Helper()
	return start(t, helper, "new", freshNamespaces(), args)
}

// StartHere starts a helper in the namespaces of the test: another process of
// this node.
func StartHere(t *testing.T, helper string, args ...string) *Process {
	t.Helper()
	return start(t, helper, "here", &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}, args)
}

func start(t *testing.T, helper, inside string, attr *syscall.SysProcAttr, args []string) *Process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), insideEnv+"="+inside, helperEnv+"="+helper)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{Pid: cmd.Process.Pid, Out: bufio.NewScanner(out), In: in, cmd: cmd}
	t.Cleanup(p.Kill)
	return p
}

// Sh runs a shell command and returns its output; the test fails where it does.
func Sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
