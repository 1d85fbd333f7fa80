package agent

import (
	"context"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/self"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

// The agent on a real kernel: what strangers undo is back within a second, its
// own work wakes it into nothing, and RemoveAll leaves the machine as it was.
func TestOnTheRealKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, "ip link add eth0 type bridge", "ip link set eth0 addrgenmode none", "ip addr add 10.0.0.1/24 dev eth0", "ip link set eth0 up", "ip route add default via 10.0.0.254",
			"ip link add flannel.1 type vxlan id 1 dev eth0 dstport 8472", "ip link set flannel.1 addrgenmode none", "ip addr add 10.244.1.0/32 dev flannel.1", "ip link set flannel.1 up",
			"ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink")
		// The kernel makes an empty IPv6 table of its own when a rule first
		// needs one; that is not ours.
		sh(t, "ip -6 rule add priority 32000 lookup main", "ip -6 rule del priority 32000")
		before := machine(t)

		private, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		me := e1()
		me.Key = model.Key(private.PublicKey())
		log := slog.New(slog.DiscardHandler)
		var device *wireguard.Device
		ensure := func(ctx context.Context, mtu int) (Device, error) {
			d, err := wireguard.Ensure(ctx, wireguard.Options{Interface: "kilo0", Port: 51820, MTU: mtu, Key: me.Key, Log: log})
			if err != nil {
				return nil, err
			}
			if device == nil || d.Local() {
				device = d
			}
			return device, nil
		}
		k, err := kernel.New(kernel.Options{Interface: "kilo0", PrivateKey: private, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		cluster, cni := newFakeCluster(me, snapshot(me, e2(), w1()), true), newFakeCNI(me)
		a := New(Config{
			Node: "e1", Interface: "kilo0", Port: 51820, Key: me.Key, Gateways: 2,
			Settings: self.Settings{Port: 51820, Granularity: model.PerLocation},
			Cluster:  cluster, Kernel: k, Device: ensure,
			Adapter:      func(context.Context) (adapter.Adapter, error) { return cni, nil },
			ResyncPeriod: time.Hour, Log: log,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		eventually(t, "it is ready", func() bool { return a.Status(ctx).Ready })
		up := machine(t)
		if up == before {
			t.Fatal("the agent is ready and nothing stands in the kernel")
		}

		time.Sleep(greetSecond + 500*time.Millisecond)
		passes := testutil.ToFloat64(a.metrics.reconciles)
		time.Sleep(3 * time.Second)
		if n := testutil.ToFloat64(a.metrics.reconciles) - passes; n > 0 {
			t.Errorf("%v passes in three seconds in which nothing happened", n)
		}

		for what, command := range map[string]string{
			"a rule":                "ip rule del priority 107",
			"a route":               "ip route del 10.244.9.0/24 dev kilo0 table 1107",
			"all routes of a table": "ip route flush table 1107",
			"the guard":             "nft flush chain inet kilo guard",
			"the table":             "nft delete table inet kilo",
			"the link down":         "ip link set kilo0 down",
			"the link":              "ip link del kilo0",
		} {
			sh(t, command)
			deadline := time.Now().Add(time.Second)
			for machine(t) != up && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
			}
			if now := machine(t); now != up {
				t.Errorf("%s was not back after a second (-want +is):\n%s", what, change(now, up))
			}
		}
		if n := testutil.ToFloat64(a.metrics.drift.WithLabelValues("rule")); n == 0 {
			t.Error("repaired rules are not counted")
		}

		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if report, err := RemoveAll(t.Context(), k, true); err != nil || len(report.Done) == 0 {
			t.Errorf("RemoveAll: %v, %d changes", err, len(report.Done))
		}
		if after := machine(t); after != before {
			t.Errorf("RemoveAll left another machine (-want +is):\n%s", change(after, before))
		}
	}, "ip", "nft")
}

func sh(t *testing.T, lines ...string) string {
	t.Helper()
	var out strings.Builder
	for _, line := range lines {
		words := strings.Fields(line)
		b, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, b)
		}
		out.Write(b)
	}
	return out.String()
}

// machine prints links, addresses, rules, routes and filters, without the
// numbers that tell one link from its successor.
func machine(t *testing.T) string {
	t.Helper()
	return sh(t, "ip -br link", "ip -br addr", "ip rule", "ip -6 rule", "ip -d route show table all", "ip -6 route show table all", "nft list ruleset")
}

// change shows what of two outputs is not in both.
func change(is, want string) string {
	return cmp.Diff(strings.Split(want, "\n"), strings.Split(is, "\n"))
}
