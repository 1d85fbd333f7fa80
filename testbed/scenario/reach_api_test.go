package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The API server's host has a public address and nothing else, so that address
// rides the tunnel. Whatever rp_filter is, nodes reach it: by the tunnel, without
// one as soon as that is found dead, and by the tunnel again. So does an agent
// that starts while no tunnel works. By the tunnel the API server reaches nodes.
func TestAPIServerIsReached(t *testing.T) {
	l := mesh(t, lab.Spec{
		RoutedInternet: true,
		Locations: []lab.Location{
			{Name: "a", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Nodes: []lab.Node{{Name: "a1", Public: true, Pods: 1}, {Name: "a3", Pods: 1}}},
			{Name: "c", Subnets: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24")}, Nodes: []lab.Node{{Name: "c1", Pods: 1}, {Name: "c2", Pods: 1}}}, // behind NAT
			{Name: "edge", Nodes: []lab.Node{{Name: "v1", Pods: 1}}},
			{Name: "cp", Nodes: []lab.Node{{Name: "cp", ControlPlane: true}}},
		},
	})
	nodes := l.Nodes()[:5]
	for _, n := range nodes {
		ok(t, n.StartEcho(t.Context()))
	}
	for _, c := range []struct{ value, name string }{{"1", "strict"}, {"0", "off"}, {"2", "loose"}} {
		t.Run("rp_filter "+c.name, func(t *testing.T) {
			for _, n := range l.Nodes() {
				must(n.Shell(t.Context(), "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo "+c.value+" >$f; done"))(t)
			}
			eventually(t, soon, func() error { return apiServerByTunnel(t, l, "a1", true) })
			bothWays(t, l, nodes)

			must(l.Internet().Shell(t.Context(), "nft 'table ip cut { chain wireguard { type filter hook forward priority 0; udp dport 51820 counter drop; udp sport 51820 counter drop; }; }'"))(t)
			cut := time.Now()
			for _, n := range nodes {
				eventually(t, soon, func() error { return callsAPIServer(t, l, n) })
			}
			t.Logf("all reach the API server without a tunnel %s after it was cut", time.Since(cut).Round(100*time.Millisecond))
			for _, name := range []string{"a1", "a3", "c1", "v1"} {
				ok(t, l.Machine(name).RestartAgent(t.Context()))
			}
			for range 5 {
				for _, n := range nodes {
					eventually(t, soon, func() error { return callsAPIServer(t, l, n) })
				}
			}
			ok(t, apiServerByTunnel(t, l, "a1", false))
			if err := l.Machine("cp").Ping(t.Context(), l.Machine("a3").Addr); err == nil {
				t.Error("cp reaches a3 with no tunnel: nothing was cut")
			}

			must(l.Internet().Shell(t.Context(), "nft delete table ip cut"))(t)
			mended := time.Now()
			whole(t, l, soon)
			for _, name := range []string{"a1", "c1", "v1"} {
				eventually(t, soon, func() error { return apiServerByTunnel(t, l, name, true) })
			}
			bothWays(t, l, nodes)
			t.Logf("by the tunnel again %s after it was mended", time.Since(mended).Round(100*time.Millisecond))
		})
	}
}

// bothWays has nodes call the API server, and its host call them.
func bothWays(t *testing.T, l *lab.Lab, nodes []*lab.Machine) {
	t.Helper()
	for _, n := range nodes {
		eventually(t, soon, func() error { return callsAPIServer(t, l, n) })
		eventually(t, soon, func() error {
			seen, err := l.Machine("cp").SeenAt(t.Context(), netip.AddrPortFrom(n.Addr, lab.EchoPort))
			if err == nil && seen != l.Machine("cp").Addr {
				err = fmt.Errorf("as %s", seen)
			}
			if err != nil {
				return fmt.Errorf("cp calls %s: %w", n.Name, err)
			}
			return nil
		})
	}
}

func callsAPIServer(t *testing.T, l *lab.Lab, n *lab.Machine) error {
	_, err := n.Exec(t.Context(), "/usr/bin/curl", "--silent", "--show-error", "--insecure", "--max-time", "3", fmt.Sprintf("https://%s:6443/version", l.Machine("cp").Public))
	if err != nil {
		return fmt.Errorf("%s calls the API server: %w", n.Name, err)
	}
	return nil
}

// apiServerByTunnel wants a node's way to the API server's host to be, or not to
// be, the tunnel.
func apiServerByTunnel(t *testing.T, l *lab.Lab, node string, want bool) error {
	way, err := l.Machine(node).Exec(t.Context(), "/usr/sbin/ip", "route", "get", l.Machine("cp").Public.String())
	if err == nil && strings.Contains(way, " dev kilo0 ") != want {
		err = fmt.Errorf("%s reaches the API server's host by %s; by the tunnel: want %v", node, way, want)
	}
	return err
}
