//go:build linux

package inside

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Node is one node of the cluster.
type Node struct {
	NodeConfig
	config *Config
	holder *exec.Cmd // of its namespaces
	inPod  *exec.Cmd // of its pod's
	Pod    netip.Addr

	agent   *exec.Cmd // nil: does not run
	said    lockedBuffer
	flannel *exec.Cmd

	proxy     *exec.Cmd // nil: none
	proxySaid lockedBuffer
	answering []*exec.Cmd
}

// hold keeps namespaces that it was started in until it is killed. A node's are
// made fit to live in: /run and /var/lib of its own, a strict rp_filter.
func hold(args []string) error {
	script := "ip link set lo up"
	if len(args) > 0 && args[0] == "node" {
		script += `
			mount --make-rprivate /
			mount -t tmpfs tmpfs /run
			mount -t tmpfs tmpfs /var/lib
			mount -t sysfs sysfs /sys
			hostname ` + args[1] + `
			for c in all default; do echo 1 >/proc/sys/net/ipv4/conf/$c/rp_filter; done
			echo 1 >/proc/sys/net/ipv4/ip_forward`
	}
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("hold: %w: %s", err, out)
	}
	fmt.Println("held")
	for {
		// It also comes back from signals that end nobody, such as the Go
		// runtime's own SIGURG.
		_ = unix.Pause()
	}
}

// holdNamespaces starts a holder and waits for its word.
func holdNamespaces(flags uintptr, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe", append([]string{"hold"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: flags}
	cmd.Stderr = os.Stdout
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	word := make([]byte, 5)
	if n, err := out.Read(word); err != nil || string(word[:n]) != "held\n" {
		return nil, fmt.Errorf("namespaces %v: %q %w", args, word[:n], err)
	}
	return cmd, nil
}

// startNode makes a node with its cable, starts Flannel and attaches a pod.
func startNode(c *Config, nc *NodeConfig) (*Node, error) {
	n := &Node{NodeConfig: *nc, config: c}
	var err error
	if n.holder, err = holdNamespaces(unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWUTS, "node", n.Name); err != nil {
		return nil, err
	}
	if err := sh(fmt.Sprintf(`
		ip link add %[1]s type veth peer name eth0 netns %[2]d
		ip addr add %[3]s/24 dev %[1]s
		ip link set %[1]s up`, n.Name, n.holder.Process.Pid, n.Gateway)); err != nil {
		return nil, err
	}
	if err := n.sh(fmt.Sprintf(`
		ip addr add %s/24 dev eth0
		ip link set eth0 up
		ip route add default via %s`, n.Address, n.Gateway)); err != nil {
		return nil, err
	}
	var said lockedBuffer
	n.flannel = n.command(FlannelProgram, "--kube-subnet-mgr", "--kubeconfig-file="+FlannelAccess, "--ip-masq", "--iface=eth0", "--subnet-file="+subnetFile)
	n.flannel.Env = append(os.Environ(), "NODE_NAME="+n.Name)
	n.flannel.Stdout, n.flannel.Stderr = &said, &said
	if err := n.flannel.Start(); err != nil {
		return nil, err
	}
	var own netip.Prefix
	if err := Eventually("Flannel writes "+subnetFile, func() error {
		text, err := n.Run("cat", subnetFile)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, said.String())
		}
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "FLANNEL_SUBNET="); ok {
				own, err = netip.ParsePrefix(value)
				return err
			}
		}
		return errors.New(text)
	}); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	return n, n.startPod(own)
}

// startPod attaches one pod; own is the node's address among its pods, with the
// length of their prefix.
func (n *Node) startPod(own netip.Prefix) error {
	var err error
	if n.inPod, err = holdNamespaces(unix.CLONE_NEWNET); err != nil {
		return err
	}
	n.Pod = own.Addr().Next()
	if err := sh(fmt.Sprintf(`nsenter --target %d --net ip link add cni0 type veth peer name eth0 netns %d`,
		n.holder.Process.Pid, n.inPod.Process.Pid)); err != nil {
		return err
	}
	if err := n.sh(fmt.Sprintf(`ip addr add %s dev cni0; ip link set cni0 up`, own)); err != nil {
		return err
	}
	return sh(fmt.Sprintf(`nsenter --target %d --net sh -ec 'ip addr add %s/%d dev eth0; ip link set eth0 up; ip route add default via %s'`,
		n.inPod.Process.Pid, n.Pod, own.Bits(), own.Addr()))
}

// command is a command on the node. nsenter executes it in place, so the
// process id is its own.
func (n *Node) command(argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(n.holder.Process.Pid), "--net", "--mount", "--uts", "--"}, argv...)...)
}

// Run runs a command on the node and returns what it prints.
func (n *Node) Run(argv ...string) (string, error) {
	out, err := n.command(argv...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %s: %w: %s", n.Name, strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

func (n *Node) sh(script string) error {
	_, err := n.Run("sh", "-ec", script)
	return err
}

// StartAgent starts the real agent, with the kernel's device or none.
func (n *Node) StartAgent() error {
	n.agent = n.command(AgentProgram, "--hostname="+n.Name, "--kubeconfig="+AgentAccess, "--wireguard=kernel",
		"--adapter=flannel", "--service-cidr="+n.config.ServiceNetwork)
	n.agent.Stdout, n.agent.Stderr = &n.said, &n.said
	return n.agent.Start()
}

// StopAgent ends the agent as a rollout does.
func (n *Node) StopAgent() error { return n.endAgent(unix.SIGTERM) }

// KillAgent ends the agent as a crash does.
func (n *Node) KillAgent() error { return n.endAgent(unix.SIGKILL) }

func (n *Node) endAgent(sig syscall.Signal) error {
	if err := n.agent.Process.Signal(sig); err != nil {
		return fmt.Errorf("%s: the agent does not run: %w", n.Name, err)
	}
	err := n.agent.Wait()
	if sig == unix.SIGTERM && err != nil {
		return fmt.Errorf("%s: the agent: %w", n.Name, err)
	}
	// Whoever answers from here on is another one.
	if _, err := n.Status(); err == nil {
		return fmt.Errorf("%s: the agent was ended, and still answers", n.Name)
	}
	n.agent = nil
	return nil
}

// Status is what the guest reads of an agent's /status.
type Status struct {
	Ready  bool `json:"ready"`
	Tunnel struct {
		Kind string `json:"kind"`
	} `json:"tunnel"`
	Waiting []string `json:"waiting"`
	Last    struct {
		Snapshot string   `json:"snapshot"`
		Errors   []string `json:"errors"`
	} `json:"lastReconcile"`
}

// Page fetches one of the agent's pages.
func (n *Node) Page(path string) (string, error) { return n.Run(os.Args[0], "get", agentPages+path) }

// AgentPid is the agent's process id.
func (n *Node) AgentPid() int { return n.agent.Process.Pid }

// Status asks the agent, as one does on its node.
func (n *Node) Status() (Status, error) {
	var s Status
	text, err := n.Page("/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// WaitReady waits until the agent is ready, with what it knows of the cluster
// from there: "api" or "disk".
func (n *Node) WaitReady(from string) error {
	return Eventually(n.Name+" is ready, from "+from, func() error {
		s, err := n.Status()
		if err != nil {
			return err
		}
		if !s.Ready || s.Last.Snapshot != from || s.Tunnel.Kind != "kernel" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func (n *Node) Reaches(to netip.Addr) error {
	return Eventually(fmt.Sprintf("the pod of %s reaches %s", n.Name, to), func() error {
		return sh(fmt.Sprintf("nsenter --target %d --net ping -n -c 1 -W 2 %s", n.inPod.Process.Pid, to))
	})
}

// log is the end of what the agent has said.
func (n *Node) Log() string {
	lines := strings.Split(n.said.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

func (n *Node) End() {
	for _, p := range append(n.answering, n.proxy, n.agent, n.flannel, n.inPod, n.holder) {
		if p != nil && p.Process != nil {
			_ = p.Process.Kill()
		}
	}
}

// Eventually repeats a check until it returns nil, for as long as patience goes.
func Eventually(what string, check func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %s: %w", patience, what, err)
		}
	}
}

func sh(script string) error {
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// HasWord tells whether a word is among those of a text.
func HasWord(text, word string) bool {
	return strings.Contains(" "+strings.Join(strings.Fields(text), " ")+" ", " "+word+" ")
}

// lockedBuffer takes what a process says while others read it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
