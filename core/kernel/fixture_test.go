package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func([]string) int{"node": node})
}

// tools are the programs that the tests look at the kernel with: not this
// package, which is under test.
var tools = []string{"ip", "nft"}

func TestSuite(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		kerneltest.Suite(t, func(t *testing.T) kerneltest.Fixture { return newFixture(t) })
	}, tools...)
}

// fixture is a Kernel in an empty network namespace.
type fixture struct {
	*Kernel
	*testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	private, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	var devices []*wireguard.Device
	k, err := New(Options{Interface: "kilo0", PrivateKey: private, Ensure: func(ctx context.Context, name string, port uint16) error {
		d, err := wireguard.Ensure(ctx, wireguard.Options{Interface: name, Port: port, Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			devices = append(devices, d)
		}
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{k, t}
	t.Cleanup(func() {
		f.empty()
		k.Close()
		for _, d := range devices {
			if d.Local() {
				<-d.Done()
			}
		}
	})
	return f
}

// empty brings the namespace back to how a test finds it.
func (f *fixture) empty() {
	nstest.Sh(f.T, `
		nft flush ruleset
		for l in $(ls /proc/sys/net/ipv4/conf); do
			case $l in all|default|lo) ;; *) ip link del $l 2>/dev/null || true;; esac
		done
		for v in -4 -6; do
			ip $v rule | sed -n 's/^\([0-9]*\):.*/\1/p' | while read p; do
				case $p in 0|32766|32767) ;; *) ip $v rule del priority $p;; esac
			done
			ip $v route flush table 1107 2>/dev/null || true
			ip $v route flush table 1108 2>/dev/null || true
			ip $v route flush table 1109 2>/dev/null || true
		done`)
}

func (f *fixture) WireGuard() (string, model.Key) { return f.tunnels[0], f.public }

func (f *fixture) AddLink(name string, addresses ...netip.Prefix) {
	f.Helper()
	nstest.Sh(f.T, fmt.Sprintf("ip link add %s type bridge; ip link set %s addrgenmode none; ip link set %s up", name, name, name))
	for _, a := range addresses {
		nodad := ""
		if a.Addr().Is6() {
			nodad = "nodad"
		}
		nstest.Sh(f.T, fmt.Sprintf("ip addr add %s dev %s %s", a, name, nodad))
	}
}

func (f *fixture) RemoveLink(name string) { nstest.Sh(f.T, "ip link del "+name) }

func (f *fixture) TakeDown(name string) { nstest.Sh(f.T, "ip link set "+name+" down") }

func (f *fixture) AddRoute(r state.Route) error {
	args := []string{"route", "add", "table", fmt.Sprint(r.Table), r.Type.String(), r.Dst.String(), "proto", "static"}
	if r.Via.IsValid() {
		args = append(args, "via", r.Via.String())
	}
	if r.Device != "" {
		args = append(args, "dev", r.Device)
	}
	if r.Metric != 0 {
		args = append(args, "metric", fmt.Sprint(r.Metric))
	}
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (f *fixture) AddRule(r state.Rule) {
	f.Helper()
	family, not := "-4", ""
	if r.V6 {
		family = "-6"
	}
	if r.Invert {
		not = "not"
	}
	command := fmt.Sprintf("ip %s rule add %s priority %d table %d", family, not, r.Priority, r.Table)
	if r.Mark != 0 {
		command += fmt.Sprintf(" fwmark %#x", r.Mark)
	}
	if r.IIF != "" {
		command += " iif " + r.IIF
	}
	nstest.Sh(f.T, command)
}

func (f *fixture) FlushChain(name string) { nstest.Sh(f.T, "nft flush chain inet kilo "+name) }

func (f *fixture) Everything() string {
	f.Helper()
	text := nstest.Sh(f.T, `
		ip -o link | awk '{sub(/@.*/, "", $2); sub(/:$/, "", $2); print "link", $2, $3, $4, $5}'
		ip -o addr | sed 's/^[0-9]*: //'
		ip route show table all
		ip -6 route show table all
		ip rule
		ip -6 rule`)
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + nstest.Sh(f.T, "nft list ruleset")
}

func (f *fixture) FilterText() string {
	out, err := exec.Command("nft", "list", "table", "inet", "kilo").CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "No such file") {
			return ""
		}
		f.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}
