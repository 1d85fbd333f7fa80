package wireguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func([]string) int{
		// serve is a process that carries the device.
		"serve": func([]string) int {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				for {
					if _, err := configured("kilo0"); err == nil {
						fmt.Println("serving")
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				_, _ = io.Copy(io.Discard, os.Stdin)
				cancel()
			}()
			if err := Serve(ctx, Options{Interface: "kilo0", Mode: Userspace}); err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Println("ended")
			return 0
		},
		// listen holds a UDP port.
		"listen": func(args []string) int {
			c, err := net.ListenPacket("udp", args[0])
			if err != nil {
				fmt.Println(err)
				return 1
			}
			defer c.Close()
			fmt.Println("listening")
			_, _ = io.Copy(io.Discard, os.Stdin)
			return 0
		},
		// tun holds a TUN interface that has nothing to do with WireGuard.
		"tun": func(args []string) int {
			t := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: args[0]}, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1}
			if err := netlink.LinkAdd(t); err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Println("holding")
			_, _ = io.Copy(io.Discard, os.Stdin)
			return 0
		},
	})
}

func configured(name string) (*wgtypes.Device, error) { return deviceByName(name) }

func setKey(t *testing.T, name string, key wgtypes.Key) {
	t.Helper()
	c, err := wgctrl.New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ConfigureDevice(name, wgtypes.Config{PrivateKey: &key}); err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func ensure(t *testing.T, o Options) *Device {
	t.Helper()
	d, err := Ensure(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// refused wants a *Foreign error that names all of words.
func refused(t *testing.T, o Options, words ...string) {
	t.Helper()
	d, err := Ensure(context.Background(), o)
	if err == nil {
		d.Close()
		t.Fatal("not refused")
	}
	if !errors.As(err, new(*Foreign)) {
		t.Errorf("%v: want a *Foreign error", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func userspaceDevice() Options { return Options{Interface: "kilo0", Mode: Userspace, MTU: 1380} }

func TestMadeAdoptedClosed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		d := ensure(t, userspaceDevice())
		if d.Kind() != Userspace || !d.Local() {
			t.Fatalf("kind %s, local %v", d.Kind(), d.Local())
		}
		link, err := netlink.LinkByName("kilo0")
		if err != nil {
			t.Fatal(err)
		}
		if a := link.Attrs(); a.MTU != 1380 || a.Alias != state.LinkAlias {
			t.Errorf("MTU %d, alias %q", a.MTU, a.Alias)
		}
		if _, err := configured("kilo0"); err != nil {
			t.Error("wgctrl cannot drive it:", err)
		}

		again := ensure(t, userspaceDevice())
		if again.Local() {
			t.Error("the second handle owns the device too")
		}
		again.Close()
		if l, err := netlink.LinkByName("kilo0"); err != nil || l.Attrs().Index != link.Attrs().Index {
			t.Error("the second handle's Close touched the link:", err)
		}

		d.Close()
		if _, err := netlink.LinkByName("kilo0"); !isNotFound(err) {
			t.Error("the interface is still there:", err)
		}
		if _, err := os.Stat(socketPath("kilo0")); !os.IsNotExist(err) {
			t.Error("the control socket is still there:", err)
		}
		select {
		case <-d.Done():
		case <-time.After(5 * time.Second):
			t.Error("Done is not closed")
		}
		ensure(t, userspaceDevice())
	})
}

func TestInterfaceDeletedUnderUs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		d := ensure(t, userspaceDevice())
		nstest.Sh(t, "ip link set kilo0 up; ip link del kilo0")
		// Straight away: the old device is still going down.
		if again := ensure(t, userspaceDevice()); !again.Local() {
			t.Error("not made anew")
		}
		select {
		case <-d.Done():
		case <-time.After(5 * time.Second):
			t.Error("Done is not closed")
		}
	}, "ip")
}

func TestControlSocketRemoved(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ensure(t, userspaceDevice())
		if err := os.Remove(socketPath("kilo0")); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if _, err := configured("kilo0"); err == nil {
				return
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	})
}

func TestStaleSocketIsReplaced(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p := nstest.StartHere(t, "serve")
		if line := p.Line(t); line != "serving" {
			t.Fatal(line)
		}
		p.Kill()
		if _, err := os.Stat(socketPath("kilo0")); err != nil {
			t.Fatal("a killed process should leave its socket file:", err)
		}
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := netlink.LinkByName("kilo0"); isNotFound(err) {
				break
			} else if time.Now().After(deadline) {
				t.Fatal("its interface lives on")
			}
		}
		if d := ensure(t, userspaceDevice()); !d.Local() {
			t.Error("not ours")
		}
		if _, err := configured("kilo0"); err != nil {
			t.Error(err)
		}
	})
}

func TestSidecarIsAdopted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p := nstest.StartHere(t, "serve")
		if line := p.Line(t); line != "serving" {
			t.Fatal(line)
		}
		key := newKey(t)
		setKey(t, "kilo0", key)
		for _, mode := range []string{Auto, Userspace} {
			d := ensure(t, Options{Interface: "kilo0", Mode: mode})
			if d.Kind() != Userspace || d.Local() || d.Done() != nil {
				t.Errorf("%s: kind %s, local %v", mode, d.Kind(), d.Local())
			}
			d.Close()
		}
		if d, err := configured("kilo0"); err != nil || d.PrivateKey != key {
			t.Error("the sidecar's device was touched:", err)
		}
		refused(t, Options{Interface: "kilo0", Mode: Kernel}, "pid "+fmt.Sprint(p.Pid), "kernel's device")

		p.In.Close()
		if line := p.Line(t); line != "ended" {
			t.Error(line)
		}
	})
}

// Whoever leaves the link to a sidecar makes none, and adopts the sidecar's.
func TestExternalIsWaitedFor(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		external := Options{Interface: "kilo0", External: true}
		waits := func() {
			t.Helper()
			d, err := Ensure(context.Background(), external)
			if err == nil {
				d.Close()
			}
			if !errors.Is(err, ErrNotThere) || !strings.Contains(err.Error(), "kilo0") {
				t.Errorf("error is %v, want one that says that it is not there", err)
			}
			if link, err := netlink.LinkByName("kilo0"); err == nil && link.Attrs().Alias == state.LinkAlias {
				t.Error("it was made, or marked")
			}
		}
		waits()
		// Its interface is there, and nobody answers for it yet.
		tun := nstest.StartHere(t, "tun", "kilo0")
		if line := tun.Line(t); line != "holding" {
			t.Fatal(line)
		}
		waits()
		// One that is up and carries somebody's packets is a stranger's.
		nstest.Sh(t, "ip link set kilo0 up")
		refused(t, external, "interface kilo0", "process wireguard.test (pid "+fmt.Sprint(tun.Pid)+")")
		tun.Kill()
		waits()

		// While others look for it all the time, a sidecar comes up.
		sidecar := nstest.StartHere(t, "serve")
		for deadline := time.Now().Add(10 * time.Second); ; {
			d, err := Ensure(context.Background(), external)
			if err == nil {
				if d.Local() || d.Kind() != Userspace {
					t.Errorf("kind %s, local %v", d.Kind(), d.Local())
				}
				break
			}
			if !errors.Is(err, ErrNotThere) || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		if line := sidecar.Line(t); line != "serving" {
			t.Error(line)
		}
		sidecar.Kill()
		eventually(t, func() bool { _, err := netlink.LinkByName("kilo0"); return isNotFound(err) })
		waits()
	}, "ip")
}

// Serve makes its device again when somebody deletes the interface, and takes
// over from one that ends.
func TestServeGoesOn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		served := func() bool {
			link, err := netlink.LinkByName("kilo0")
			_, deviceErr := configured("kilo0")
			return err == nil && deviceErr == nil && link.Attrs().Alias == state.LinkAlias
		}
		first, second := nstest.StartHere(t, "serve"), (*nstest.Process)(nil)
		if line := first.Line(t); line != "serving" {
			t.Fatal(line)
		}
		index := func() int {
			link, err := netlink.LinkByName("kilo0")
			if err != nil {
				return 0
			}
			return link.Attrs().Index
		}
		before := index()
		nstest.Sh(t, "ip link del kilo0")
		eventually(t, func() bool { return served() && index() != before })

		second = nstest.StartHere(t, "serve")
		if line := second.Line(t); line != "serving" { // by the first
			t.Fatal(line)
		}
		before = index()
		time.Sleep(2 * lookEvery)
		if index() != before {
			t.Error("the second touched the device of the first")
		}
		first.Kill()
		eventually(t, func() bool { return served() && index() != before })
		second.In.Close()
		if line := second.Line(t); line != "ended" {
			t.Error(line)
		}
		if index() != 0 {
			t.Error("an orderly end leaves the interface")
		}
	}, "ip")
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within five seconds")
		}
	}
}

// A device without our alias is ours by its key, or while it holds nothing.
func TestWhoseDevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p := nstest.StartHere(t, "serve")
		if line := p.Line(t); line != "serving" {
			t.Fatal(line)
		}
		nstest.Sh(t, "ip link set kilo0 alias ''")
		ensure(t, Options{Interface: "kilo0"}) // blank: nobody's

		key := newKey(t)
		setKey(t, "kilo0", key)
		nstest.Sh(t, "ip link set kilo0 alias ''")
		other := newKey(t)
		stranger := Options{Interface: "kilo0", Key: model.Key(other.PublicKey())}
		refused(t, stranger, "interface kilo0", fmt.Sprintf("(pid %d)", p.Pid), key.PublicKey().String())

		ensure(t, Options{Interface: "kilo0", Key: model.Key(key.PublicKey())})
		link, err := netlink.LinkByName("kilo0")
		if err != nil || link.Attrs().Alias != state.LinkAlias {
			t.Errorf("alias %q: %v", link.Attrs().Alias, err)
		}
	}, "ip")
}

func TestStrangersInterface(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, "ip link add kilo0 type bridge")
		refused(t, userspaceDevice(), "interface kilo0", `"bridge"`)
		nstest.Sh(t, "ip link del kilo0")

		// The name of another node's interface proves nothing about ours.
		elsewhere := nstest.Start(t, "tun", "kilo0")
		if line := elsewhere.Line(t); line != "holding" {
			t.Fatal(line)
		}
		p := nstest.StartHere(t, "tun", "kilo0")
		if line := p.Line(t); line != "holding" {
			t.Fatal(line)
		}
		refused(t, userspaceDevice(), "interface kilo0", "process wireguard.test (pid "+fmt.Sprint(p.Pid)+")")
		p.Kill()

		nstest.Sh(t, "ip tuntap add kilo0 mode tun")
		refused(t, userspaceDevice(), "interface kilo0", "persistent")
	}, "ip")
}

func TestStrangersPort(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		o := userspaceDevice()
		o.Port = 51820
		for _, addr := range []string{"0.0.0.0:51820", "[::1]:51820", "127.0.0.1:51820"} {
			p := nstest.StartHere(t, "listen", addr)
			if line := p.Line(t); line != "listening" {
				t.Fatal(line)
			}
			refused(t, o, "UDP port 51820", "process wireguard.test (pid "+fmt.Sprint(p.Pid)+")")
			if _, err := netlink.LinkByName("kilo0"); !isNotFound(err) {
				t.Error("refused, and made a link all the same")
			}
			p.Kill()
		}
		nstest.Sh(t, "ip link add vx0 type vxlan id 7 dstport 51820 local 127.0.0.1; ip link set vx0 up")
		refused(t, o, "UDP port 51820", "VXLAN interface vx0")
		nstest.Sh(t, "ip link del vx0")

		// Our own device listening there is no stranger.
		ensure(t, o)
		port := 51820
		c, err := wgctrl.New()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		key := newKey(t)
		if err := c.ConfigureDevice("kilo0", wgtypes.Config{PrivateKey: &key, ListenPort: &port}); err != nil {
			t.Fatal(err)
		}
		ensure(t, o) // whether it opened the port already or not
		nstest.Sh(t, "ip link set kilo0 up")
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if inodes, err := udpSockets(51820); err != nil {
				t.Fatal(err)
			} else if len(inodes) > 0 {
				break
			} else if time.Now().After(deadline) {
				t.Fatal("the device opened no socket")
			}
		}
		ensure(t, o)
	}, "ip")
}

// The socket of a device in another network namespace must not be mistaken
// for ours.
func TestSocketOfAnotherNamespace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, "mkdir -p /run/wireguard")
		l, err := net.Listen("unix", socketPath("kilo0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		refused(t, userspaceDevice(), "socket "+socketPath("kilo0"), fmt.Sprintf("(pid %d)", os.Getpid()))
	})
}

func TestKernelDeviceAskedFor(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		probe := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "probe"}}
		if netlink.LinkAdd(probe) == nil {
			kernelDevice(t)
			return
		}
		_, err := Ensure(context.Background(), Options{Interface: "kilo0", Mode: Kernel})
		if err == nil || !strings.Contains(err.Error(), "this kernel has no WireGuard") {
			t.Error(err)
		}
		if d := ensure(t, Options{Interface: "kilo0", Mode: Auto}); d.Kind() != Userspace {
			t.Error(d.Kind())
		}
	})
}

// kernelDevice is what holds where the kernel has WireGuard.
func kernelDevice(t *testing.T) {
	d := ensure(t, Options{Interface: "kilo0", Mode: Auto})
	if d.Kind() != Kernel || d.Local() {
		t.Errorf("kind %s, local %v", d.Kind(), d.Local())
	}
	link, err := netlink.LinkByName("kilo0")
	if err != nil || link.Attrs().Alias != state.LinkAlias {
		t.Fatalf("alias %q: %v", link.Attrs().Alias, err)
	}
	d.Close()
	ensure(t, Options{Interface: "kilo0", Mode: Kernel})
	if l, err := netlink.LinkByName("kilo0"); err != nil || l.Attrs().Index != link.Attrs().Index {
		t.Error("the link was made anew:", err)
	}
	// Forced to the userspace device, ours is replaced.
	if d := ensure(t, userspaceDevice()); d.Kind() != Userspace || !d.Local() {
		t.Errorf("kind %s, local %v", d.Kind(), d.Local())
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Interface: ""}, {Interface: "sixteen-bytes-xx"}, {Interface: "kilo0", Mode: "magic"}} {
		if d, err := Ensure(context.Background(), o); err == nil {
			d.Close()
			t.Errorf("%+v: accepted", o)
		}
	}
}

func TestComplaintsOnceInAWhile(t *testing.T) {
	var out bytes.Buffer
	l := logger(slog.New(slog.NewTextHandler(&out, nil)), "kilo0")
	for range 3 {
		l.Errorf("no route to %s", "x")
	}
	l.Errorf("other %d", 1)
	l.Verbosef("chatter")
	if got := strings.Count(out.String(), "no route to x"); got != 1 {
		t.Errorf("said %d times:\n%s", got, &out)
	}
	if !strings.Contains(out.String(), "other 1") || strings.Contains(out.String(), "chatter") {
		t.Error(&out)
	}
}
