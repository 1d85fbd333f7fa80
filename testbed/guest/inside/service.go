//go:build linux

package inside

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Where the image of a guest with kube-proxy has things beside those of every
// guest with nodes.
const (
	ProxyProgram = "/usr/bin/kube-proxy"
	ProxyAccess  = "/etc/kube-proxy/kubeconfig"
	ServicesFile = "/etc/services.json"
)

// CallerPort is where whoever calls is told under which address.
const CallerPort = 8090

// Service is a Service with one backend, at CallerPort.
type Service struct {
	Address netip.AddrPort `json:"address"` // its ClusterIP and port
	Node    string         `json:"node"`    // the backend's
	// HostNetwork tells that the backend has the node's own address.
	HostNetwork bool `json:"hostNetwork"`
}

// StartProxy starts the real kube-proxy.
func (n *Node) StartProxy(mode, podNetwork string) error {
	n.proxy = n.command(ProxyProgram, "--kubeconfig="+ProxyAccess, "--hostname-override="+n.Name, "--proxy-mode="+mode, "--cluster-cidr="+podNetwork,
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249")
	n.proxy.Stdout, n.proxy.Stderr = &n.proxySaid, &n.proxySaid
	return n.proxy.Start()
}

// TellCallers answers at CallerPort, on the node and in its pod, until End.
func (n *Node) TellCallers() error {
	at := func(a string) string { return net.JoinHostPort(a, strconv.Itoa(CallerPort)) }
	onNode, inPod := n.command(os.Args[0], "tell", at(n.Address)), n.podCommand(os.Args[0], "tell", at(n.Pod.String()))
	for _, c := range []*exec.Cmd{onNode, inPod} {
		c.Stdout, c.Stderr = os.Stdout, os.Stdout
		if err := c.Start(); err != nil {
			return err
		}
		n.answering = append(n.answering, c)
	}
	return nil
}

// SeenAt is the address under which an answering backend sees who calls it from
// the node, or from its pod.
func (n *Node) SeenAt(service netip.AddrPort, fromPod bool) (netip.Addr, error) {
	command := n.command
	if fromPod {
		command = n.podCommand
	}
	out, err := command(os.Args[0], "ask", service.String()).CombinedOutput()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: %s", err, out)
	}
	return netip.ParseAddr(strings.TrimSpace(string(out)))
}

func (n *Node) podCommand(argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(n.inPod.Process.Pid), "--net", "--"}, argv...)...)
}

// ProxyLog is the end of what kube-proxy has said.
func (n *Node) ProxyLog() string {
	lines := strings.Split(n.proxySaid.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

func tellCallers(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if at, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			_, err = fmt.Fprintln(c, at.AddrPort().Addr().Unmap())
		}
		if err = errors.Join(err, c.Close()); err != nil {
			fmt.Println(err)
		}
	}
}

func ask(address string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}
