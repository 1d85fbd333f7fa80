package lab

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process says how to start a daemon. It outlives the program that starts it.
type process struct {
	group group    // where it is born
	argv  []string // argv[0] is a path
	exe   string   // the program that it becomes; "": argv[0]
	env   []string // in addition to PATH and HOME
	log   string   // file that its output is appended to
	enter int      // process whose namespaces it joins, 0: none
	// unshare are CLONE_NEW* flags: namespaces made anew for it.
	unshare uintptr
	title   string // what ps shows as its name; "": argv[0]
}

// start runs the process and returns its id once the kernel shows that it is
// the program asked for: what nsenter leaves behind, not nsenter.
func (p process) start(ctx context.Context) (int, error) {
	if err := os.MkdirAll(string(p.group), 0o755); err != nil {
		return 0, fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	if err := os.MkdirAll(filepath.Dir(p.log), 0o755); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cgroup, err := os.Open(string(p.group))
	if err != nil {
		return 0, err
	}
	defer cgroup.Close()

	argv := p.argv
	if p.enter != 0 {
		argv = append(enterArgs(p.enter), argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if p.title != "" && p.enter == 0 {
		cmd.Args[0] = p.title
	}
	cmd.Env = append(cleanEnv(), p.env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log // stdin stays closed: /dev/null
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  p.unshare,
		UseCgroupFD: true,
		CgroupFD:    int(cgroup.Fd()),
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	exited := make(chan struct{})
	go func() { // reap it while we live; afterwards init does
		cmd.Wait()
		close(exited)
	}()

	pid := cmd.Process.Pid
	want, err := os.Stat(cmp.Or(p.exe, p.argv[0]))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	died := false
	err = poll(ctx, 2*time.Millisecond, func() bool {
		select {
		case <-exited:
			died = true
			return true
		default:
		}
		exe, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
		return err == nil && os.SameFile(exe, want)
	})
	switch {
	case died:
		return 0, fmt.Errorf("%s ended at once (%s):\n%s", p.argv[0], cmd.ProcessState, logTail(p.log, 10))
	case err != nil:
		return 0, fmt.Errorf("process %d did not become %s: %w", pid, p.argv[0], err)
	}
	return pid, nil
}

// stop asks the processes of a group to end, and kills what is left after the
// given time. It returns an error if killing was needed.
func stop(ctx context.Context, g group, limit time.Duration) error {
	if err := g.signal(unix.SIGTERM); err != nil {
		return err
	}
	if g.waitEmpty(ctx, limit) {
		return nil
	}
	if err := g.kill(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%s did not end within %s of SIGTERM and was killed", filepath.Base(string(g)), limit)
}

// enterArgs makes a command line run in the namespaces of a process. nsenter
// executes its command in place, so the process id stays.
func enterArgs(pid int) []string {
	return []string{"/usr/bin/nsenter", "--target", strconv.Itoa(pid), "--mount", "--net", "--uts", "--"}
}

func enterNetArgs(pid int) []string {
	return []string{"/usr/bin/nsenter", "--target", strconv.Itoa(pid), "--net", "--"}
}

// cleanEnv keeps what the caller has in its environment (proxies, kubeconfigs,
// KILO_*) from leaking into the cluster.
func cleanEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=" + os.Getenv("TERM")}
}

// run runs a command to its end, inside the lab's cgroup so that nothing it
// leaves behind escapes, and returns its standard output.
func run(ctx context.Context, g group, stdin string, argv ...string) (string, error) {
	if err := os.MkdirAll(string(g), 0o755); err != nil {
		return "", err
	}
	cgroup, err := os.Open(string(g))
	if err != nil {
		return "", err
	}
	defer cgroup.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = 10 * time.Second // on a busy machine what was said takes its time too
	cmd.Env, cmd.Dir = cleanEnv(), "/"
	var out, problem strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &problem
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}

// logTail is the end of a log file, for error messages.
// lastWords is why a Go program that ended did: the line of a panic or a fatal
// error with what follows it, else the last line.
func lastWords(path string) string {
	tail := strings.Split(logTail(path, 400), "\n")
	for i := len(tail) - 1; i >= 0; i-- {
		if strings.HasPrefix(tail[i], "panic: ") || strings.HasPrefix(tail[i], "fatal error: ") {
			return strings.Join(tail[i:min(i+8, len(tail))], "\n")
		}
	}
	return tail[len(tail)-1]
}

func logTail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
