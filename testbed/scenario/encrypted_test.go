package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

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
