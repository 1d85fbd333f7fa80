//go:build linux

package inside

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// wireRouter makes the guest itself the router between the nodes, and their way
// out: QEMU's own network, which has these addresses always.
func wireRouter() error {
	return sh(`
		ip link set lo up
		ip addr add 10.0.2.15/24 dev eth0
		ip link set eth0 up
		ip route add default via 10.0.2.2
		echo 1 >/proc/sys/net/ipv4/ip_forward
		nft -f - <<-'EOF'
			table ip out {
				chain nat { type nat hook postrouting priority 100; oifname "eth0" masquerade; }
			}
			EOF`)
}

// OnlyWireGuard lets nothing else pass between the nodes, and counts what
// would have.
func OnlyWireGuard(nodes []*Node) error {
	return sh(fmt.Sprintf(`nft -f - <<-'EOF'
		table ip wire {
			counter clear { }
			chain forward {
				type filter hook forward priority 0;
				iifname { %[1]s, %[2]s } oifname { %[1]s, %[2]s } udp dport != %[3]d counter name clear drop
				iifname { %[1]s, %[2]s } oifname { %[1]s, %[2]s } ip protocol != udp counter name clear drop
			}
		}
		EOF`, nodes[0].Name, nodes[1].Name, wireGuardPort))
}

// NothingInClear fails where something else than WireGuard wanted to pass.
func NothingInClear() error {
	out, err := exec.Command("nft", "list", "counter", "ip", "wire", "clear").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "packets 0 bytes 0") {
		return fmt.Errorf("between the nodes, in clear: %w\n%s", err, out)
	}
	return nil
}

// CutAPI takes the API server away: what goes there is lost.
func CutAPI(address string) error {
	return sh(fmt.Sprintf(`nft -f - <<-'EOF'
		table ip cut {
			chain forward { type filter hook forward priority -1; ip daddr %s tcp dport %d drop; }
		}
		EOF`, address, apiPort))
}

// MendAPI brings it back.
func MendAPI() error { return sh("nft delete table ip cut") }

// PingRun is a stream of pings from one pod to the other.
type PingRun struct {
	What string
	cmd  *exec.Cmd
	said lockedBuffer
}

// Ping starts a stream of pings from the node's pod.
func (n *Node) Ping(to netip.Addr) (*PingRun, error) {
	p := &PingRun{What: fmt.Sprintf("%s → %s", n.Pod, to)}
	p.cmd = exec.Command("nsenter", "--target", fmt.Sprint(n.inPod.Process.Pid), "--net", "--",
		"ping", "-n", "-i", fmt.Sprintf("%.3f", pingEvery.Seconds()), to.String())
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	return p, p.cmd.Start()
}

// Stop ends the stream and returns how many pings were sent and answered.
func (p *PingRun) Stop() (sent, received int, err error) {
	if err := p.cmd.Process.Signal(unix.SIGINT); err != nil {
		return 0, 0, err
	}
	_ = p.cmd.Wait() // 1 where one was lost; the summary says more
	text := p.said.String()
	for line := range strings.Lines(text) {
		if strings.Contains(line, "packets transmitted") {
			if _, err := fmt.Sscanf(line, "%d packets transmitted, %d received", &sent, &received); err != nil {
				return 0, 0, fmt.Errorf("ping printed %q: %w", line, err)
			}
		}
	}
	// The last one may still have been under way.
	if sent == received+1 && !strings.Contains(text, fmt.Sprintf("icmp_seq=%d ", sent)) {
		sent--
	}
	return sent, received, nil
}
