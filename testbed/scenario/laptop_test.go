package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A laptop on the internet, behind a NAT router of its own, is a Peer. With
// what kgctl prints for it, and plain WireGuard, it reaches pods and nodes of
// every location with an endpoint, on gateways and members, and they see it by
// its own address. Without the Peer object it reaches nobody.
func laptopAsPeer(t *testing.T, l *lab.Lab) {
	laptop := l.Machine("laptop")
	ok(t, laptop.StartTunnel(t.Context(), "wg0"))
	shell := func(script string) string { t.Helper(); return must(laptop.Shell(t.Context(), script))(t) }
	public := strings.TrimSpace(shell("umask 077; wg genkey >/run/key; wg pubkey </run/key"))

	apply(t, l, fmt.Sprintf(`
apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata: {name: laptop}
spec: {publicKey: %q, allowedIPs: [10.5.0.1/32], persistentKeepalive: 10}
`, public))
	config := kgctl(t, l)("showconf", "peer", "laptop")
	shell(fmt.Sprintf(`
		{ printf '[Interface]\nPrivateKey = %%s\n' "$(cat /run/key)"; cat <<-'EOF'
		%s
		EOF
		} | wg setconf wg0 /dev/stdin
		ip addr add 10.5.0.1/32 dev wg0
		ip link set wg0 up
		for p in $(wg show wg0 allowed-ips | cut -f2); do ip route add $p dev wg0; done
	`, config))

	targets := []*lab.Place{&l.Pod("a1").Place, &l.Pod("a3").Place, &l.Pod("b2").Place, &l.Machine("a3").Place, &l.Machine("b1").Place, &l.Machine("cp").Place}
	for _, to := range targets {
		eventually(t, soon, func() error { return laptop.Ping(t.Context(), to.Addr) })
	}
	for _, pod := range []*lab.Pod{l.Pod("a1"), l.Pod("a3")} {
		if seen, err := laptop.SeenBy(t.Context(), pod); err != nil || seen.String() != "10.5.0.1" {
			t.Errorf("%s sees the laptop as %s (%v)", pod.Name, seen, err)
		}
	}
	// And back: whoever has a connection to make to it can.
	ok(t, l.Pod("b2").Ping(t.Context(), netip.MustParseAddr("10.5.0.1")))
	if _, there := wg(t, l, "a1", "allowed-ips")[public]; !there {
		t.Error("a1's device does not know the laptop: this test sees nothing")
	}

	// One gateway says so on the Peer.
	must(l.Kubectl(t.Context(), "wait", "--for=condition=Ready", "peer/laptop", "--timeout=60s"))(t)

	// Limited to one pod and one node, it reaches these and nobody else, while
	// others still reach it.
	patch := func(spec string) {
		t.Helper()
		must(l.Kubectl(t.Context(), "patch", "peer", "laptop", "--type=merge", "--patch", `{"spec":`+spec+`}`))(t)
	}
	a1, b1 := &l.Pod("a1").Place, &l.Machine("b1").Place
	patch(fmt.Sprintf(`{"allowedDestinations":[{"prefix":"%s"},{"prefix":"%s"}]}`, a1.Addr, b1.Addr))
	for _, to := range targets {
		eventually(t, soon, func() error {
			err := laptop.Ping(t.Context(), to.Addr)
			if allowed := to.Addr == a1.Addr || to.Addr == b1.Addr; allowed != (err == nil) {
				return fmt.Errorf("limited to %s and %s, to %s: %v", a1.Addr, b1.Addr, to.Name, err)
			}
			return nil
		})
	}
	ok(t, l.Pod("b2").Ping(t.Context(), netip.MustParseAddr("10.5.0.1")))

	// By name: a Service, which it reaches and nothing behind it; then all pods of a
	// namespace, and no node.
	service := must(l.Expose(t.Context(), "for-laptop", l.Pod("b2")))(t)
	ask := func() error {
		name, err := laptop.Get(t.Context(), fmt.Sprintf("http://%s/name", service))
		if err == nil && strings.TrimSpace(name) != l.Pod("b2").Name {
			err = fmt.Errorf("%q answers at %s", name, service)
		}
		return err
	}
	patch(`{"allowedDestinations":[{"namespace":"default","service":"for-laptop"}]}`)
	for _, to := range targets {
		eventually(t, soon, func() error {
			if laptop.Ping(t.Context(), to.Addr) == nil {
				return fmt.Errorf("limited to the Service for-laptop it still reaches %s", to.Name)
			}
			return nil
		})
	}
	eventually(t, soon, ask)
	patch(`{"allowedDestinations":[{"namespace":"default"}]}`)
	for _, to := range targets {
		pod := l.Spec.PodNetwork.Contains(to.Addr)
		eventually(t, soon, func() error {
			if err := laptop.Ping(t.Context(), to.Addr); pod != (err == nil) {
				return fmt.Errorf("limited to the namespace default, to %s: %v", to.Name, err)
			}
			return nil
		})
	}
	ok(t, ask())
	patch(`{"allowedDestinations":[{"namespace":"kube-system"}]}`)
	eventually(t, soon, func() error {
		if ask() == nil || laptop.Ping(t.Context(), a1.Addr) == nil {
			return fmt.Errorf("limited to another namespace it still reaches this one")
		}
		return nil
	})

	patch(`{"allowedDestinations":null}`)
	eventually(t, soon, func() error { return laptop.Ping(t.Context(), l.Pod("b2").Addr) })

	must(l.Kubectl(t.Context(), "delete", "peer", "laptop"))(t)
	eventually(t, 2*time.Second, func() error {
		if flows, err := l.Machine("a1").Shell(t.Context(), "conntrack -L 2>/dev/null | grep 10.5.0.1 || true"); err != nil || strings.Contains(flows, "src=10.5.0.1") {
			return fmt.Errorf("a1 still tracks connections of the laptop: %s (%v)", flows, err)
		}
		for _, gateway := range []string{"a1", "b1", "c1", "cp"} {
			if _, there := wg(t, l, gateway, "allowed-ips")[public]; there {
				return fmt.Errorf("%s still has the laptop's key", gateway)
			}
		}
		return nil
	})
	m := must(lab.Reach(t.Context(), []*lab.Place{&laptop.Place}, targets))(t)
	if m.Passed() > 0 {
		t.Errorf("without its Peer the laptop still reaches somebody:\n%s", m)
	}
}
