package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// Encrypted or nothing, while the agent cannot help: it is stopped like a
// process that gets no CPU, something of ours is taken away beneath it, and
// pods, nodes and members go on sending to other locations. Nothing of that is
// seen on any wire. Then the agent goes on, and the mesh is whole again.
func encryptedOrNothing(t *testing.T, l *lab.Lab) {
	for _, c := range []struct{ node, damage string }{
		{"a1", "ip rule del priority 107"},
		{"a1", "ip route flush table 1107"},
		{"a1", "ip link set kilo0 down"},
		{"a1", "ip link del kilo0"},
		{"a1", "ip addr flush dev eth1; ip addr add 198.51.100.11/24 dev eth1; ip route add default via 198.51.100.1"},
		{"a3", "ip rule del priority 107"},
		{"a3", "ip route flush table 1107"},
		{"a3", "nft delete table inet kilo"}, // what stands in 1107 is enough
		{"b1", "ip route flush table 1107; ip rule del priority 107"},
	} {
		t.Run(c.node+" "+c.damage, func(t *testing.T) {
			// For as long as nothing in the tunnel answers for an API server's host,
			// what is for its port goes outside, and of all else the guard alone, our
			// nftables table, says no.
			for _, from := range []string{"a1", "a3", "b1"} {
				eventually(t, soon, func() error { return byTunnel(t, l, from, l.Machine("cp").Addr) })
			}
			n := l.Machine(c.node)
			ok(t, n.SignalDaemon("kg", unix.SIGSTOP))
			wires := watchWires(t, l)
			ok(t, ignoreOutput(n.Shell(t.Context(), c.damage)))
			streams := startStreams(t, l, "a1 b2", "a3 b2", "a2 c2", "b2 a3", "b1 c1", "c2 a1")
			var pings sync.WaitGroup
			for _, to := range []string{"b1", "b2", "c1", "cp", "a3", "a1"} {
				for _, from := range []string{"a1", "a3", "b1"} {
					// Whether it arrives does not matter here.
					pings.Go(func() { _ = l.Machine(from).Ping(t.Context(), l.Machine(to).Addr) })
				}
			}
			pings.Wait()
			for _, s := range streams {
				must(s.run.Stop(t.Context()))(t)
			}
			wires.quiet(t)
			ok(t, n.SignalDaemon("kg", unix.SIGCONT))
			whole(t, l, soon)
		})
	}
	t.Run("IPv6", func(t *testing.T) { nothingInClearOfIPv6(t, l) })
}

// A node elsewhere has IPv6 addresses, its own and of its pods, and a1 and a3 have
// no way to them but a default route. That leads nothing there in clear, though no
// tunnel carries it: not with the agents stopped, and not when either what stands
// in 1107 or the guard is gone. What is nobody's is seen to leave.
func nothingInClearOfIPv6(t *testing.T, l *lab.Lab) {
	const pod, address, nobodys = "fd00:10:244:c8::7", "fd00:6::9", "fd00:77::1"
	api := must(l.Client("admin"))(t)
	must(api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "six", Labels: map[string]string{"kilo.squat.ai/location": "six"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.200.0/24", PodCIDRs: []string{"10.244.200.0/24", "fd00:10:244:c8::/64"}},
	}, metav1.CreateOptions{}))(t)
	status := `{"status":{"addresses":[{"type":"InternalIP","address":"` + address + `"}]}}`
	must(api.CoreV1().Nodes().Patch(t.Context(), "six", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"))(t)

	senders := []struct {
		node, device string
		wire         *lab.Place
		wireDevice   string
	}{{"a1", "eth1", l.Internet(), ""}, {"a3", "eth0", l.Router("a"), "lan0"}}
	for i, s := range senders {
		n := l.Machine(s.node)
		must(n.Shell(t.Context(), fmt.Sprintf(`
			sysctl -q net.ipv6.conf.%[1]s.disable_ipv6=0
			ip -6 addr add fd00:99:%[2]d::2/64 dev %[1]s nodad
			ip -6 neigh replace fd00:99:%[2]d::1 lladdr 02:00:00:00:99:01 dev %[1]s nud permanent
			ip -6 route add default via fd00:99:%[2]d::1 dev %[1]s`, s.device, i)))(t)
		eventually(t, soon, func() error {
			out, err := n.Shell(t.Context(), "ip -6 route show table 1107; nft list set inet kilo remote6")
			for _, want := range []string{"unreachable fd00:10:244:c8::/64", "unreachable " + address, "elements"} {
				if err == nil && !strings.Contains(out, want) {
					err = fmt.Errorf("%s: no %q in\n%s", n.Name, want, out)
				}
			}
			return err
		})
	}
	for _, damage := range []string{":", "ip -6 route flush table 1107", "ip -6 rule del priority 107", "nft delete table inet kilo"} {
		captures := make([]*lab.Capture, len(senders))
		var pings sync.WaitGroup
		for i, s := range senders {
			n := l.Machine(s.node)
			ok(t, n.SignalDaemon("kg", unix.SIGSTOP))
			captures[i] = must(s.wire.Capture(t.Context(), s.wireDevice, fmt.Sprintf("icmp6 and ip6[40] == 128 and src host fd00:99:%d::2", i)))(t)
			must(n.Shell(t.Context(), damage))(t)
			for _, to := range []string{pod, address, nobodys} {
				pings.Go(func() { _, _ = n.Exec(t.Context(), "/usr/bin/ping", "-6", "-n", "-c1", "-W1", to) })
			}
		}
		pings.Wait()
		for i, s := range senders {
			seen := strings.Join(must(captures[i].Stop(t.Context()))(t), "\n")
			if strings.Contains(seen, pod) || strings.Contains(seen, address) {
				t.Errorf("%s, after %q, in clear:\n%s", s.node, damage, seen)
			}
			if !strings.Contains(seen, nobodys) {
				t.Errorf("%s, after %q: what is nobody's is not seen either: nothing was tried\n%s", s.node, damage, seen)
			}
			ok(t, l.Machine(s.node).SignalDaemon("kg", unix.SIGCONT))
		}
		whole(t, l, soon)
	}
	for _, s := range senders {
		must(l.Machine(s.node).Shell(t.Context(), "sysctl -q net.ipv6.conf."+s.device+".disable_ipv6=1"))(t)
	}
	ok(t, api.CoreV1().Nodes().Delete(t.Context(), "six", metav1.DeleteOptions{}))
	whole(t, l, soon)
}

// byTunnel is a check for eventually: a node's way to an address is one of ours.
func byTunnel(t *testing.T, l *lab.Lab, node string, to netip.Addr) error {
	way, err := l.Machine(node).Exec(t.Context(), "/usr/sbin/ip", "route", "get", to.String())
	if err == nil && !strings.Contains(way, " table 1107 ") {
		err = fmt.Errorf("%s reaches %s by %s", node, to, way)
	}
	return err
}

func ignoreOutput(_ string, err error) error { return err }
