package scenario

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// kgctlConnect joins from a laptop behind NAT by one command: with an interface, and
// then as a user without rights, through a SOCKS5 proxy. Interrupted, it leaves
// nothing behind, neither here nor there.
func kgctlConnect(t *testing.T, l *lab.Lab) {
	laptop := l.Machine("laptop")
	binary := filepath.Join(t.TempDir(), "kgctl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/kgctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	config := must(l.Kubectl(t.Context(), "config", "view", "--flatten", "--raw"))(t)
	shell := func(script string) string { t.Helper(); return must(laptop.Shell(t.Context(), script))(t) }
	shell(fmt.Sprintf("install -m755 %s /run/kgctl; cat > /run/config <<'EOF'\n%s\nEOF\nchmod 644 /run/config", binary, config))
	start := func(as, args string) {
		t.Helper()
		shell(fmt.Sprintf("%s /run/kgctl --kubeconfig /run/config connect %s >/run/connect.log 2>&1 </dev/null & echo $! >/run/connect.pid", as, args))
	}
	ended := func(peer string) {
		t.Helper()
		shell("kill -INT $(cat /run/connect.pid)")
		eventually(t, soon, func() error {
			if left := shell("kill -0 $(cat /run/connect.pid) 2>/dev/null && cat /run/connect.log || true"); left != "" {
				return fmt.Errorf("it still runs: %s", left)
			}
			return nil
		})
		if peers := must(l.Kubectl(t.Context(), "get", "peers", "--output=name"))(t); strings.Contains(peers, peer) {
			t.Errorf("the Peer is still there: %s\n%s", peers, shell("cat /run/connect.log"))
		}
	}

	// The laptop that was configured by hand has the same routes.
	shell("ip link del wg0 2>/dev/null || true")

	start("", "seb-laptop --interface wgk")
	for _, to := range []netip.Addr{l.Pod("a3").Addr, l.Pod("b2").Addr, l.Machine("cp").Addr} {
		eventually(t, soon, func() error {
			if err := laptop.Ping(t.Context(), to); err != nil {
				return fmt.Errorf("%w\n%s", err, shell("cat /run/connect.log; ip addr show wgk 2>&1; ip route"))
			}
			return nil
		})
	}
	if seen, err := laptop.SeenBy(t.Context(), l.Pod("b2")); err != nil || !netip.MustParsePrefix("10.5.0.0/24").Contains(seen) {
		t.Errorf("b2 sees the laptop as %s (%v)", seen, err)
	}
	ended("seb-laptop")
	if left := shell("ip -brief link show wgk 2>/dev/null || true; ip route show 10.244.0.0/16 || true"); left != "" {
		t.Errorf("left behind: %s", left)
	}

	start("setpriv --reuid=65534 --regid=65534 --clear-groups", "seb-socks --socks5 127.0.0.1:1080")
	url := fmt.Sprintf("http://%s/source", netip.AddrPortFrom(l.Pod("a3").Addr, lab.EchoPort))
	eventually(t, soon, func() error {
		seen, err := laptop.Shell(t.Context(), "curl -sS --max-time 10 --socks5-hostname 127.0.0.1:1080 "+url)
		if a, bad := netip.ParseAddr(strings.TrimSpace(seen)); err != nil || bad != nil || !netip.MustParsePrefix("10.5.0.0/24").Contains(a) {
			return fmt.Errorf("curl by the proxy: %q, %v\n%s", seen, err, shell("cat /run/connect.log"))
		}
		return nil
	})
	ended("seb-socks")
}
