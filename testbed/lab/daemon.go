package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// startDaemon starts a program on the machine, under a name of ours.
func (m *Machine) startDaemon(ctx context.Context, name, path string, args ...string) error {
	return m.startDaemonEnv(ctx, name, nil, path, args...)
}

func (m *Machine) startDaemonEnv(ctx context.Context, name string, env []string, path string, args ...string) error {
	return m.startDaemonAs(ctx, name, path, env, path, args...)
}

// startDaemonAs starts a program that turns into another one.
func (m *Machine) startDaemonAs(ctx context.Context, name, becomes string, env []string, path string, args ...string) error {
	g := m.group.sub(name)
	if pid := g.pid(); pid != 0 {
		return fmt.Errorf("node %s: %s runs already, as process %d", m.Name, name, pid)
	}
	pid, err := m.pid()
	if err != nil {
		return err
	}
	_, err = process{
		group: g,
		argv:  append([]string{path}, args...),
		exe:   becomes,
		env:   append([]string{"NODE_NAME=" + m.Name}, env...),
		log:   m.lab.logFile(m.Name, name),
		enter: pid,
	}.start(ctx)
	if err != nil {
		return fmt.Errorf("node %s: %w", m.Name, err)
	}
	return nil
}

// StartEcho has the machine answer at its own EchoPort what pods answer at
// theirs: a pod with the host's network. Where it does so already, it goes on.
func (m *Machine) StartEcho(ctx context.Context) error {
	if m.Daemon("echo") != 0 {
		return nil
	}
	return m.startDaemon(ctx, "echo", m.lab.path("bin", "kilolab"), "echo", m.Name)
}

// waitForDaemon waits until a daemon has done what done looks for. The error
// has what is missing, and the end of the daemon's log.
func (m *Machine) waitForDaemon(ctx context.Context, name string, limit time.Duration, done func() error) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	missing, ended := errors.New("not tried"), false
	poll(wait, 50*time.Millisecond, func() bool {
		missing = done()
		ended = missing != nil && m.Daemon(name) == 0
		return missing == nil || ended
	})
	switch {
	case missing == nil:
		return nil
	case ended:
		return fmt.Errorf("node %s: %s has ended; its log ends:\n%s", m.Name, name, logTail(m.LogFile(name), 10))
	}
	return fmt.Errorf("node %s: %s is not there after %s: %w; its log ends:\n%s", m.Name, name, limit, missing, logTail(m.LogFile(name), 10))
}

// Daemon is the process id of a daemon on the machine (kg, flanneld,
// kube-proxy, etcd …), 0 if it does not run.
func (m *Machine) Daemon(name string) int { return m.group.sub(name).pid() }

// stopDaemon asks a daemon to end; it is an error if it has to be killed.
func (m *Machine) stopDaemon(ctx context.Context, name string) error {
	return m.stopDaemonWithin(ctx, name, 10*time.Second)
}

func (m *Machine) stopDaemonWithin(ctx context.Context, name string, limit time.Duration) error {
	if m.Daemon(name) == 0 {
		return nil
	}
	if err := stop(ctx, m.group.sub(name), limit); err != nil {
		return fmt.Errorf("node %s: %w", m.Name, err)
	}
	return nil
}

// KillDaemon ends a daemon as a crash does.
func (m *Machine) KillDaemon(ctx context.Context, name string) error {
	if m.Daemon(name) == 0 {
		return fmt.Errorf("node %s: %s does not run", m.Name, name)
	}
	return m.group.sub(name).kill(ctx)
}

// SignalDaemon sends a signal to a daemon, such as SIGSTOP to freeze it.
func (m *Machine) SignalDaemon(name string, sig unix.Signal) error {
	return m.group.sub(name).signal(sig)
}

// Log is everything that a daemon has said since the lab came up.
func (m *Machine) Log(daemon string) (string, error) {
	text, err := os.ReadFile(m.lab.logFile(m.Name, daemon))
	return string(text), err
}

// LogFile is the file that a daemon's output is appended to.
func (m *Machine) LogFile(daemon string) string { return m.lab.logFile(m.Name, daemon) }

// boot makes the machine and plugs it in: what happens before any daemon.
func (l *Lab) boot(ctx context.Context, loc *Location, n *Node) error {
	if err := l.holdMachine(ctx, n); err != nil {
		return err
	}
	return l.wireNode(ctx, loc, n)
}

// startNode starts what a node runs beside the agent: the host CNI, kube-proxy
// and its pods.
func (l *Lab) startNode(ctx context.Context, m *Machine) error {
	if l.Spec.ProxyMode != ProxyOff {
		if err := l.startProxy(ctx, m); err != nil {
			return err
		}
	}
	if l.Spec.CNI == CNINone {
		return nil
	}
	if l.Spec.CNI.hasFlannel() {
		if err := l.startFlannel(ctx, m); err != nil {
			return err
		}
		if err := l.writeCNIConfig(ctx, m); err != nil {
			return err
		}
	}
	if l.Spec.CNI.hasCilium() {
		if err := l.startCilium(ctx, m); err != nil {
			return err
		}
	}
	for i := range m.spec.Pods {
		name := "pod-" + m.Name
		if m.spec.Pods > 1 {
			name = fmt.Sprintf("pod-%s-%d", m.Name, i+1)
		}
		if err := l.startPod(ctx, m, name); err != nil {
			return err
		}
	}
	return l.waitForProxy(ctx, m)
}

// waitForProxy waits until kube-proxy, if there is one, has written its rules, of
// IPv6 seconds after those of IPv4: who looks at a machine before has seen half.
func (l *Lab) waitForProxy(ctx context.Context, m *Machine) error {
	if l.Spec.ProxyMode == ProxyOff {
		return nil
	}
	return m.waitForDaemon(ctx, tools.KubeProxy, time.Minute, func() error {
		time.Sleep(200 * time.Millisecond) // its metrics are a long page
		text, err := m.Exec(ctx, "/usr/bin/curl", "--silent", "--show-error", "--max-time", "2", "http://127.0.0.1:10249/metrics")
		for _, family := range []string{"IPv4", "IPv6"} {
			if err == nil && !strings.Contains(text, `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="`+family+`"} `) {
				err = fmt.Errorf("it has not written its rules for %s yet", family)
			}
		}
		return err
	})
}

func (l *Lab) startProxy(ctx context.Context, m *Machine) error {
	return m.startDaemon(ctx, tools.KubeProxy, l.tools[tools.KubeProxy],
		"--kubeconfig="+l.Kubeconfig("kube-proxy"),
		"--hostname-override="+m.Name,
		"--proxy-mode="+string(l.Spec.ProxyMode),
		"--cluster-cidr="+l.Spec.PodNetwork.String(),
		// Connection tracking has machine-wide limits, which are not ours.
		"--conntrack-max-per-core=0",
		"--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0s",
		"--conntrack-tcp-timeout-close-wait=0s",
		"--healthz-bind-address=127.0.0.1:10256",
		"--metrics-bind-address=127.0.0.1:10249",
	)
}

const flannelSubnetFile = "/run/flannel/subnet.env"

func (l *Lab) startFlannel(ctx context.Context, m *Machine) error {
	if err := m.writeFile("/etc/kube-flannel/net-conf.json", l.flannelConfig()); err != nil {
		return err
	}
	if err := m.RestartFlannel(ctx); err != nil {
		return err
	}
	return nil
}

// RestartFlannel ends Flannel by its own process id, if it runs, starts it and
// waits until it has written its subnet file again.
func (m *Machine) RestartFlannel(ctx context.Context) error {
	if err := m.stopDaemon(ctx, tools.Flanneld); err != nil {
		return err
	}
	if _, err := m.Exec(ctx, "/bin/rm", "-f", flannelSubnetFile); err != nil {
		return err
	}
	err := m.startDaemon(ctx, tools.Flanneld, m.lab.tools[tools.Flanneld],
		"--kube-subnet-mgr",
		"--kubeconfig-file="+m.lab.Kubeconfig("flannel"),
		"--ip-masq",
		"--iface="+m.spec.lanInterface(),
		// Its default is five seconds: on eight nodes of one machine half a CPU
		// for nothing but calls of iptables.
		"--iptables-resync=120",
	)
	if err != nil {
		return err
	}
	return m.waitForDaemon(ctx, tools.Flanneld, 30*time.Second, func() error {
		text, err := m.readFile(flannelSubnetFile)
		if err == nil && !strings.Contains(text, "FLANNEL_MTU=") {
			err = fmt.Errorf("%s is not complete", flannelSubnetFile)
		}
		return err
	})
}

func (l *Lab) flannelConfig() string {
	f := l.Spec.Flannel
	backend := []string{fmt.Sprintf("%q: %q", "Type", f.Backend)}
	if f.VNI != 0 {
		backend = append(backend, fmt.Sprintf("%q: %d", "VNI", f.VNI))
	}
	if f.Port != 0 {
		backend = append(backend, fmt.Sprintf("%q: %d", "Port", f.Port))
	}
	if f.DirectRouting {
		backend = append(backend, fmt.Sprintf("%q: true", "DirectRouting"))
	}
	return fmt.Sprintf("{%q: %q, %q: %t, %q: {%s}}\n",
		"Network", l.Spec.PodNetwork, "EnableNFTables", f.NFTables, "Backend", strings.Join(backend, ", "))
}

// writeFile writes a file as the machine sees its file system.
func (m *Machine) writeFile(path, text string) error {
	pid, err := m.pid()
	if err != nil {
		return err
	}
	path = fmt.Sprintf("/proc/%d/root%s", pid, path)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// readFile reads a file as the machine sees its file system.
func (m *Machine) readFile(path string) (string, error) {
	pid, err := m.pid()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", pid, path))
	return string(text), err
}

// Running lists the daemons and pods that run on the machine.
func (m *Machine) Running() []string {
	entries, err := os.ReadDir(string(m.group))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != holder && e.Name() != "exec" && m.group.sub(e.Name()).pid() != 0 {
			names = append(names, e.Name())
		}
	}
	return names
}
