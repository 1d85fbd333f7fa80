package kernel

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

func sh(command string) error {
	if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// bare wants the WireGuard link alone.
func bare(k *Kernel) state.State {
	return state.State{Links: []state.Link{{Name: "kilo0", Kind: state.WireGuard, MTU: 1420,
		Tunnel: &state.Tunnel{Key: k.public, Port: 51820, Mark: state.Mark}}}}
}

func run(t *testing.T, k *Kernel, wanted state.State) state.State {
	t.Helper()
	report, err := apply.Run(context.Background(), k, wanted)
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	if left := state.Diff(report.Now, wanted); left != nil {
		t.Errorf("left to do: %v", left)
	}
	return report.Now
}

func TestKeyIsNotPrinted(t *testing.T) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Interface: "kilo0", PrivateKey: key}
	k, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	var log strings.Builder
	l := slog.New(slog.NewTextHandler(&log, nil))
	l.Info("x", "options", o, "kernel", k)
	var text string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		text += fmt.Sprintf(verb+verb+verb, o, &o, k) + "\n"
	}
	text = strings.ToLower(text + log.String())
	for _, form := range []string{key.String(), hex.EncodeToString(key[:]), base64.RawStdEncoding.EncodeToString(key[:16]), fmt.Sprint(key[:4])} {
		if strings.Contains(text, strings.ToLower(strings.Trim(form, "[]"))) {
			t.Errorf("the private key is printed as %s", form)
		}
	}
}

// A link of our name that somebody else made is neither seen nor touched, and
// whoever wants ours is told.
func TestStrangersLink(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		ctx := context.Background()
		lan := netip.MustParseAddr("10.0.0.1")
		f.AddLink("lan0", netip.PrefixFrom(lan, 24))
		vxlan := state.Link{Name: state.VXLANLink, Kind: state.VXLAN, MTU: 1370,
			VXLAN: &state.VXLANConfig{ID: 77, Port: 8473, Device: "lan0", Local: lan}}
		for _, c := range []struct {
			link    string
			command string
			wanted  state.Link
		}{
			{"kilo0", "ip link add kilo0 type bridge", bare(f.Kernel).Links[0]},
			{"kilo0", "ip link add kilo0 alias kilo type bridge", bare(f.Kernel).Links[0]},
			{"kilo0", "ip tuntap add kilo0 mode tun", bare(f.Kernel).Links[0]},
			{state.VXLANLink, "ip link add kilo-vxlan type bridge", vxlan},
			{state.VXLANLink, "ip link add kilo-vxlan type vxlan id 77 dstport 8473; ip link set kilo-vxlan alias other", vxlan},
			// Without an IPv6 address of its own, whose route the kernel would add in its own time.
			{state.VXLANLink, "ip link add kilo-vxlan type vxlan id 77 dstport 8473; ip link set kilo-vxlan addrgenmode none; ip link set kilo-vxlan up", vxlan},
		} {
			nstest.Sh(t, c.command)
			before := f.Everything()
			if s, err := f.Observe(ctx); err != nil || len(s.Links) != 0 {
				t.Errorf("%s: observed %v\n%s", c.command, err, s)
			}
			if err := f.Apply(ctx, state.SetLink{Link: c.wanted}); err == nil || !strings.Contains(err.Error(), c.link+" belongs to somebody else") {
				t.Errorf("%s: %v", c.command, err)
			}
			if err := f.Apply(ctx, state.DeleteLink{Name: c.link}); err != nil {
				t.Errorf("%s: %v", c.command, err)
			}
			if after := f.Everything(); after != before {
				t.Errorf("%s: touched; before:\n%s\nafter:\n%s", c.command, before, after)
			}
			nstest.Sh(t, "ip link del "+c.link)
		}
	}, tools...)
}

// What an earlier process made without our alias is known by its key.
func TestLinkKnownByItsKey(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		run(t, f.Kernel, bare(f.Kernel))
		nstest.Sh(t, "ip link set kilo0 alias ''; ip addr add 10.4.0.1/16 dev kilo0; ip addr add fe80::1/64 dev kilo0")
		w := bare(f.Kernel)
		w.Links[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.4.0.1/32")}
		run(t, f.Kernel, w)
		if out := nstest.Sh(t, "ip route; ip -6 route"); out != "" {
			t.Errorf("routes in main:\n%s", out)
		}

		other, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		k2, err := New(Options{Interface: "kilo0", PrivateKey: other})
		if err != nil {
			t.Fatal(err)
		}
		defer k2.Close()
		// With our alias the key does not matter: it may have been lost and
		// made anew, and has to be set.
		run(t, k2, bare(k2))
		nstest.Sh(t, "ip link set kilo0 alias ''")
		if s, err := f.Observe(context.Background()); err != nil || len(s.Links) != 0 {
			t.Errorf("a device with another key and no alias is not ours: %v\n%s", err, s)
		}
	}, tools...)
}

// A port that somebody took between the check and the opening: the device
// stays closed, which is seen, and mended once the port is free.
func TestPortTaken(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		nstest.Sh(t, "ip link add vx0 type vxlan id 7 dstport 51820 local 127.0.0.1; ip link set vx0 up")
		w := bare(f.Kernel)
		ctx := context.Background()
		// The kernel's device tells at once, the userspace one if it takes itself
		// for up; or else it finds out later.
		if _, err := apply.Run(ctx, f, w); err != nil && !strings.Contains(err.Error(), "UDP port 51820 belongs to VXLAN interface vx0") {
			t.Error(err)
		}
		eventually(t, "the closed device is seen", func() bool {
			s, err := f.Observe(ctx)
			return err == nil && state.Diff(s, w) != nil
		})
		nstest.Sh(t, "ip link del vx0")
		if _, err := apply.Run(ctx, f, w); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it listens", func() bool {
			return strings.Contains(nstest.Sh(t, "cat /proc/net/udp"), fmt.Sprintf(":%04X ", 51820))
		})
		run(t, f.Kernel, w)
	}, tools...)
}

// Greet makes a peer hear from the device without any traffic, once, and leaves
// its keepalive as it is.
func TestGreet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		private, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		w := bare(f.Kernel)
		p := &state.Peer{Key: model.Key(private.PublicKey()), Endpoint: peer.LocalAddr().(*net.UDPAddr).AddrPort(), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.4.0.2/32")}}
		w.Links[0].Tunnel.Peers = []state.Peer{*p}
		run(t, f.Kernel, w)
		packet := make([]byte, 2048)
		hears := func(within time.Duration) int {
			peer.SetReadDeadline(time.Now().Add(within))
			n, _ := peer.Read(packet)
			return n
		}
		if n := hears(300 * time.Millisecond); n != 0 {
			t.Errorf("the peer hears %d bytes before it is greeted", n)
		}
		if err := f.Greet(context.Background(), p.Key); err != nil {
			t.Fatal(err)
		}
		const initiation = 148 // bytes of a handshake initiation, whose type is 1
		if n := hears(3 * time.Second); n != initiation || packet[0] != 1 {
			t.Errorf("the peer hears %d bytes %.4x, want a handshake initiation", n, packet[:n])
		}
		if n := hears(2 * time.Second); n != 0 { // WireGuard repeats it after five
			t.Errorf("the peer hears another %d bytes", n)
		}
		run(t, f.Kernel, w)

		w.Links[0].Tunnel.Peers[0].Keepalive = 25 * time.Second
		run(t, f.Kernel, w)
		if err := f.Greet(context.Background(), p.Key); err != nil {
			t.Fatal(err)
		}
		if s, err := f.Observe(context.Background()); err != nil || len(state.Diff(s, w)) != 0 {
			t.Errorf("greeting changed something: %v, %v", state.Diff(s, w), err)
		}
		if err := f.Greet(context.Background(), model.Key{1}); err == nil {
			t.Error("a peer that is not there was greeted")
		}
	}, tools...)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 5 seconds: " + what)
		}
	}
}

func TestHost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		nstest.Sh(t, `
			ip link add eth0 type veth peer name eth1
			ip link set eth0 mtu 1400 addrgenmode none; ip link set eth0 up
			ip addr add 10.0.0.5/24 dev eth0
			ip addr add 10.0.0.6/24 dev eth0
			ip addr add fd00::5/64 dev eth0 nodad
			ip addr add fd00::6/64 dev eth0 nodad preferred_lft 0
			ip link set eth1 addrgenmode none
			ip link add br0 type bridge
			ip link set br0 addrgenmode none; ip link set br0 up
			ip addr add 10.1.0.1/24 dev br0
			ip tuntap add tun9 mode tun
			ip route add default via 10.0.0.1 metric 100
			ip route add default via 10.1.0.2 metric 50
			ip route add default via 10.0.0.2 metric 10 table 77
			ip -6 route add default via fd00::1 dev eth0 metric 1`)
		h, err := f.Host(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]model.Interface{}
		for _, i := range h.Interfaces {
			i.Index = 0
			byName[i.Name] = i
		}
		p := netip.MustParsePrefix
		want := map[string]model.Interface{
			"lo":   {Name: "lo", MTU: 65536, Up: true, Addresses: []netip.Prefix{p("127.0.0.1/8"), p("::1/128")}},
			"eth0": {Name: "eth0", Kind: "veth", MTU: 1400, Up: true, Addresses: []netip.Prefix{p("10.0.0.5/24"), p("10.0.0.6/24"), p("fd00::5/64")}},
			"eth1": {Name: "eth1", Kind: "veth", MTU: 1500},
			"br0":  {Name: "br0", Kind: "bridge", MTU: 1500, Up: true, Addresses: []netip.Prefix{p("10.1.0.1/24")}},
			"tun9": {Name: "tun9", Kind: "tun", MTU: 1500},
		}
		if !reflect.DeepEqual(byName, want) {
			t.Errorf("interfaces:\n%+v\nwant:\n%+v", byName, want)
		}
		if want := []string{"eth0", "br0"}; !reflect.DeepEqual(h.DefaultDevices, want) {
			t.Errorf("default devices %v, want %v", h.DefaultDevices, want)
		}

		nstest.Sh(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=1 net.ipv4.conf.br0.rp_filter=2")
		if on, err := Forwarding(); err != nil || !on {
			t.Error(on, err)
		}
		for device, want := range map[string]int{"eth0": 1, "br0": 2} {
			if got, err := RPFilter(device); err != nil || got != want {
				t.Errorf("rp_filter of %s: %d, %v", device, got, err)
			}
		}
		nstest.Sh(t, "sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.all.rp_filter=2")
		if on, err := Forwarding(); err != nil || on {
			t.Error(on, err)
		}
		if got, err := RPFilter("eth0"); err != nil || got != 2 {
			t.Error("all is larger, and holds", got, err)
		}
		if _, err := RPFilter("nosuch"); err == nil {
			t.Error("no such interface, no error")
		}
	}, append(tools, "sysctl")...)
}

func TestWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		// Addresses that links give themselves come a second late: news of an
		// earlier command.
		nstest.Sh(t, `
			sysctl -q -w net.ipv6.conf.default.addr_gen_mode=1 net.ipv6.conf.default.accept_dad=0
			ip link add lan0 type bridge
			ip link set lan0 up
			nft add table inet other
			nft add chain inet other c '{ type filter hook input priority 0; }'`)
		w := bare(f.Kernel)
		w.Filter.Chains = []state.Chain{{Name: "c", Type: state.FilterChain, Hook: "input"}}
		run(t, f.Kernel, w)
		var calls atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- f.Watch(ctx, func() { calls.Add(1) }) }()
		quiet := func() int64 {
			for {
				n := calls.Load()
				time.Sleep(150 * time.Millisecond)
				if calls.Load() == n {
					return n
				}
			}
		}
		eventually(t, "a first call", func() bool { return calls.Load() > 0 })
		for _, c := range []struct {
			heard   bool
			command string
		}{
			{true, "ip link set kilo0 down"},
			{true, "ip link set kilo0 up"},
			{true, "ip addr add 10.0.0.1/24 dev lan0"},
			{true, "ip addr del 10.0.0.1/24 dev lan0"},
			{true, "ip route add 10.9.0.0/16 dev lan0"},
			{true, "ip route add 10.9.0.0/16 dev lan0 table 1107"},
			{true, "ip route del 10.9.0.0/16 dev lan0 table 1107"},
			{true, "ip -6 route add unreachable fd00:9::/64 table 1108 proto 107"},
			{true, "ip rule add priority 107 fwmark 1 table 99 proto 107"},
			{true, "ip rule del priority 107"},
			{true, "nft add rule inet kilo c accept"},
			{true, "nft flush chain inet kilo c"},
			{true, "ip link add lan1 type bridge"},
			{false, "ip route add 10.9.0.0/16 dev lan0 table 99"},
			{false, "ip route add 10.9.0.0/16 dev lan0 table 200000"},
			{false, "ip -6 route add unreachable fd00:9::/64 table 99 proto 107"},
			{false, "ip rule add priority 90 fwmark 1 table 99"},
			{false, "nft add rule inet other c accept"},
			{false, "nft add table ip kilo"},
			{false, "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev lan0"},
			{true, "ip link add kilo-vxlan type vxlan id 77 dev lan0 dstport 8473; ip link set kilo-vxlan up"},
			{true, "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud permanent dev kilo-vxlan"},
			{true, "bridge fdb add 02:00:00:00:00:09 dst 10.0.0.9 dev kilo-vxlan self permanent"},
		} {
			before := quiet()
			nstest.Sh(t, c.command)
			if c.heard {
				eventually(t, "a call after "+c.command, func() bool { return calls.Load() > before })
			} else if after := quiet(); after > before {
				t.Errorf("%s: %d calls", c.command, after-before)
			}
		}
		cancel()
		select {
		case err := <-ended:
			if err != context.Canceled {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Watch does not end")
		}
	}, append(tools, "sysctl")...)
}

// Frames leave by the link under the VXLAN, whatever the routing tables say: an
// entry that does not name it is seen, and mended.
func TestVXLANEntriesNameTheirLink(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		nstest.Sh(t, "ip link add lan0 type bridge; ip link set lan0 up; ip addr add 10.0.0.1/24 dev lan0")
		w := bare(f.Kernel)
		w.Links = append(w.Links, state.Link{Name: state.VXLANLink, Kind: state.VXLAN, MTU: 1450, VXLAN: &state.VXLANConfig{
			ID: 77, Port: 8473, Device: "lan0", Local: netip.MustParseAddr("10.0.0.1"), MAC: "02:00:00:00:00:01",
			Remotes: []state.VXLANRemote{{Inner: netip.MustParseAddr("10.0.0.9"), MAC: "02:00:00:00:00:09", Outer: netip.MustParseAddr("10.0.0.9")}},
		}})
		run(t, f.Kernel, w)
		const entry = "02:00:00:00:00:09 dst 10.0.0.9 via lan0 self permanent"
		if got := nstest.Sh(t, "bridge fdb show dev kilo-vxlan"); !strings.Contains(got, entry) {
			t.Errorf("got %q, want %q", got, entry)
		}
		if got := nstest.Sh(t, "ip -o link show kilo-vxlan; ip -6 addr show kilo-vxlan"); !strings.Contains(got, "link/ether 02:00:00:00:00:01") || strings.Contains(got, "inet6") {
			t.Errorf("the link: %s", got)
		}
		nstest.Sh(t, "bridge fdb replace 02:00:00:00:00:09 dst 10.0.0.9 dev kilo-vxlan self permanent")
		run(t, f.Kernel, w)
		if got := nstest.Sh(t, "bridge fdb show dev kilo-vxlan"); !strings.Contains(got, entry) {
			t.Errorf("not mended: %q", got)
		}
		w.Links[1].VXLAN.Remotes = nil
		run(t, f.Kernel, w)
		if got := nstest.Sh(t, "bridge fdb show dev kilo-vxlan; ip neigh show dev kilo-vxlan nud permanent"); strings.TrimSpace(got) != "" {
			t.Errorf("left behind: %q", got)
		}
	}, tools...)
}

// An address of ours on the loopback link is nobody's source by itself and comes
// with no route into main.
func TestLoopbackAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		w := bare(f.Kernel)
		w.Links = append(w.Links, state.Link{Name: "lo", Kind: state.Loopback, Addresses: []netip.Prefix{netip.MustParsePrefix("10.4.0.1/32")}})
		run(t, f.Kernel, w)
		if got := nstest.Sh(t, "ip -o addr show dev lo to 10.4.0.1"); !strings.Contains(got, "10.4.0.1/32 scope nowhere noprefixroute lo:kilo") {
			t.Errorf("got %q", got)
		}
		if got := nstest.Sh(t, "ip route show table main"); got != "" {
			t.Errorf("table main has %q", got)
		}
		nstest.Sh(t, "ping -c1 -W2 -I 10.4.0.1 10.4.0.1")
		h, err := f.Host(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(h); strings.Contains(text, "10.4.0.1") || !strings.Contains(text, "127.0.0.1") {
			t.Errorf("the node is said to be at %s", text)
		}
	}, append(tools, "ping")...)
}

// A route alone makes the node answer to an IPv6 address that no link has.
func TestLocalRoute(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		nstest.Sh(t, "ip link set lo up")
		w := bare(f.Kernel)
		w.Rules = []state.Rule{{Priority: state.PriorityOverlay, V6: true, Invert: true, Mark: state.Mark, Table: state.TableOverlay}}
		w.Routes = []state.Route{{Table: state.TableOverlay, Dst: netip.MustParsePrefix("fd00:4::1/128"), Type: state.Local}}
		run(t, f.Kernel, w)
		if got := nstest.Sh(t, "ip -o addr show to fd00:4::/64"); got != "" {
			t.Errorf("a link has %q", got)
		}
		nstest.Sh(t, "ping -c1 -W2 fd00:4::1")
		run(t, f.Kernel, bare(f.Kernel))
		if got := nstest.Sh(t, "ip -6 route show table 1107"); strings.TrimSpace(got) != "" {
			t.Errorf("left: %q", got)
		}
	}, append(tools, "ping")...)
}

// More news than a socket holds: nothing is lost but the single pieces.
func TestWatchOverrun(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFixture(t)
		nstest.Sh(t, "ip link add lan0 type bridge; ip link set lan0 up")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var calls atomic.Int64
		block := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- f.Watch(ctx, func() {
				if calls.Add(1) == 2 {
					<-block // while thousands of routes come
				}
			})
		}()
		eventually(t, "a first call", func() bool { return calls.Load() > 0 })
		nstest.Sh(t, `ip link set lan0 mtu 1400
			for i in $(seq 0 39); do for j in $(seq 0 255); do echo "route add 10.$i.$j.0/24 dev lan0"; done; done | ip -batch -`)
		eventually(t, "a second call", func() bool { return calls.Load() == 2 })
		close(block)
		eventually(t, "a call after the overrun", func() bool { return calls.Load() > 2 })
		time.Sleep(200 * time.Millisecond)
		before := calls.Load()
		nstest.Sh(t, "ip route add 10.99.0.0/16 dev lan0")
		eventually(t, "a call afterwards", func() bool { return calls.Load() > before })
		select {
		case err := <-ended:
			t.Fatal("Watch ended:", err)
		default:
		}
	}, tools...)
}

// The link's device is gone, and made again by whoever knows how.
func TestMissingDevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ctx := context.Background()
		f := newFixture(t)
		k, err := New(Options{Interface: "kilo0", PrivateKey: f.private()})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if err := k.Apply(ctx, state.SetLink{Link: bare(k).Links[0]}); err == nil || !strings.Contains(err.Error(), "interface kilo0 is not there") {
			t.Error(err)
		}
		run(t, f.Kernel, bare(f.Kernel))
		nstest.Sh(t, "ip link del kilo0")
		run(t, f.Kernel, bare(f.Kernel))

		// One that another process serves is driven the same way.
		if d, err := wireguard.Ensure(ctx, wireguard.Options{Interface: "kilo0"}); err != nil || d.Local() {
			t.Error(d, err)
		}
		run(t, k, bare(k))
	}, tools...)
}
