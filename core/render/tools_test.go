//go:build linux

package render

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/kilo-overlay/kilo/core/model"
)

// tool returns a program that this test needs.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if testing.Short() {
		t.Skipf("-short: %v", err)
	}
	t.Fatalf("%v; testbed/setup.sh installs it", err)
	return ""
}

// TestWgTakesConfigs gives every configuration to the real wg, whose
// "setconf" writes it into a userspace device; "wg show" must then say what
// the configuration was made of.
func TestWgTakesConfigs(t *testing.T) {
	wg := tool(t, "wg")
	name := userspaceDevice(t)
	s := fixture()
	server := model.Peer{
		Name: "server", Key: key(8), PresharedKey: model.NewPresharedKey(key(88)),
		AllowedIPs: prefixes("10.6.0.0/24", "2001:db8:6::/64"), Endpoint: endpoint("[2001:db8::6]:4500"),
	}
	s.Nodes = append(s.Nodes, behindNAT("x\nhome", 5))
	s.Peers = []model.Peer{laptop(), server}
	s.Sort()

	for what, config := range map[string]func() (Config, error){
		"node e1":     func() (Config, error) { return NodeConfig(s, "e1", 51820) },
		"node e2":     func() (Config, error) { return NodeConfig(s, "e2", 51820) },
		"peer laptop": func() (Config, error) { return OutsideConfig(s, "laptop") },
		"peer server": func() (Config, error) { return OutsideConfig(s, "server") },
		"no prefix":   func() (Config, error) { return Config{Peers: []Peer{{Key: key(7)}}}, nil },
	} {
		t.Run(what, func(t *testing.T) {
			c, err := config()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "wg.conf")
			if err := os.WriteFile(file, []byte(c.Text()), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(wg, "setconf", name, file).CombinedOutput(); err != nil {
				t.Fatalf("wg setconf: %v\n%s\n%s", err, out, c.Text())
			}
			out, err := exec.Command(wg, "show", name, "dump").Output()
			if err != nil {
				t.Fatalf("wg show: %v", err)
			}
			if port := strings.Split(strings.SplitN(string(out), "\n", 2)[0], "\t")[2]; c.ListenPort != 0 && port != fmt.Sprint(c.ListenPort) {
				t.Errorf("the device listens on port %s, want %d", port, c.ListenPort)
			}
			if got, want := dump(string(out)), dumpOf(c); !slices.Equal(got, want) {
				t.Errorf("wg show dump:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestQuickTakesConfigs gives whole files to wg-quick, whose strip parses them and
// leaves what wg takes, and that to wg.
func TestQuickTakesConfigs(t *testing.T) {
	quick, wg := tool(t, "wg-quick"), tool(t, "wg")
	name := userspaceDevice(t)
	s := fixture()
	s.Peers = []model.Peer{laptop()}
	config, err := OutsideConfig(s, "laptop")
	if err != nil {
		t.Fatal(err)
	}
	private := "IEIyQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmM="
	i := OutsideInterface(s, "laptop")
	i.DNS, i.Search = addresses("10.96.0.10"), []string{"cluster.local"}
	file := filepath.Join(t.TempDir(), "kilo.conf")
	if err := os.WriteFile(file, []byte(config.QuickText(i, private)), 0o600); err != nil {
		t.Fatal(err)
	}
	stripped, err := exec.Command(quick, "strip", file).Output()
	if err != nil {
		t.Fatalf("wg-quick strip: %v\n%s", err, config.QuickText(i, private))
	}
	for _, gone := range []string{"Address =", "DNS =", "MTU ="} {
		if strings.Contains(string(stripped), gone) {
			t.Errorf("wg-quick does not know %s:\n%s", gone, stripped)
		}
	}
	set := exec.Command(wg, "setconf", name, "/dev/stdin")
	set.Stdin = strings.NewReader(string(stripped))
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("wg setconf: %v\n%s\n%s", err, out, stripped)
	}
	out, err := exec.Command(wg, "show", name, "dump").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := dump(string(out)), dumpOf(config); !slices.Equal(got, want) {
		t.Errorf("wg show dump:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every box that Graphviz would draw is in the picture, inside of it, none on top
// of another, whatever people call things; and it is XML.
func TestDrawings(t *testing.T) {
	s := fixture()
	s.Peers = []model.Peer{laptop()}
	odd := fixture()
	oddNames(&odd)
	wide := fixture()
	for i := range 24 {
		wide.Nodes = append(wide.Nodes, behindNAT(fmt.Sprintf("site-%02d", i), byte(30+i)))
	}
	wide.Sort()
	for what, s := range map[string]model.Snapshot{"plain": s, "odd names": odd, "empty": {}, "one": {Nodes: s.Nodes[:1]}, "many": wide} {
		t.Run(what, func(t *testing.T) {
			d := Draw(s)
			if len(d.Boxes) != len(s.Nodes)+len(s.Peers) {
				t.Errorf("%d boxes for %d nodes and %d Peers", len(d.Boxes), len(s.Nodes), len(s.Peers))
			}
			if want := strings.Count(Graph(s), " -> "); len(d.Edges) != want {
				t.Errorf("%d edges, Graphviz gets %d", len(d.Edges), want)
			}
			for _, boxes := range [][]Box{d.Groups, d.Boxes} {
				for i, b := range boxes {
					if b.X < 0 || b.Y < 0 || b.X+b.W > d.Width || b.Y+b.H > d.Height {
						t.Errorf("%s is not in the picture: %+v in %d×%d", b.ID, b, d.Width, d.Height)
					}
					for _, o := range boxes[:i] {
						if b.X < o.X+o.W && o.X < b.X+b.W && b.Y < o.Y+o.H && o.Y < b.Y+b.H {
							t.Errorf("%s lies on %s", b.ID, o.ID)
						}
					}
				}
			}
			decoder := xml.NewDecoder(strings.NewReader(d.SVG()))
			for {
				if _, err := decoder.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%v in\n%s", err, d.SVG())
				}
			}
		})
	}
}

// userspaceDevice makes a WireGuard device that exists for wg alone: no
// network interface, and no socket as it is never brought up.
func userspaceDevice(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		if why := os.Getenv("KILO_TEST_SKIP_ROOT"); why != "" {
			t.Skip(why)
		}
		t.Fatal("wg's sockets are in a directory of root's: run as root, or set KILO_TEST_SKIP_ROOT to the reason why not")
	}
	name := fmt.Sprintf("render%d", os.Getpid())
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		t.Fatalf("no socket for wg: %v", err)
	}
	listener, err := ipc.UAPIListen(name, file)
	if err != nil {
		t.Fatalf("listen for wg: %v", err)
	}
	d := device.NewDevice(tuntest.NewChannelTUN().TUN(), conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			d.IpcHandle(c)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
		d.Close()
		os.Remove(filepath.Join("/var/run/wireguard", name+".sock"))
	})
	return name
}

// dump reduces "wg show DEVICE dump" to one sorted line a peer: key, preshared
// key, endpoint, allowed IPs, keepalive.
func dump(out string) (lines []string) {
	for _, line := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
		f := strings.Split(line, "\t")
		allowed := strings.Split(f[3], ",")
		slices.Sort(allowed)
		lines = append(lines, strings.Join([]string{f[0], f[1], f[2], strings.Join(allowed, ","), f[7]}, " "))
	}
	slices.Sort(lines)
	return lines
}

// dumpOf is what dump should say of a device that c configured.
func dumpOf(c Config) (lines []string) {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	for _, p := range c.Peers {
		psk, keepalive := "", "off"
		if !p.PresharedKey.IsZero() {
			psk = model.Key(p.PresharedKey.Bytes()).String()
		}
		if p.Keepalive > 0 {
			keepalive = fmt.Sprint(p.Keepalive.Seconds())
		}
		allowed := texts(p.AllowedIPs)
		slices.Sort(allowed)
		lines = append(lines, strings.Join([]string{
			p.Key.String(), or(psk, "(none)"), or(p.Endpoint.String(), "(none)"), or(strings.Join(allowed, ","), "(none)"), keepalive,
		}, " "))
	}
	slices.Sort(lines)
	return lines
}

// TestDotTakesGraphs gives the graphs to the real dot, odd names included, and
// looks for the nodes in the picture.
func TestDotTakesGraphs(t *testing.T) {
	dot := tool(t, "dot")
	s := fixture()
	s.Peers = []model.Peer{laptop()}
	odd := fixture()
	oddNames(&odd)
	for what, s := range map[string]model.Snapshot{"plain": s, "odd names": odd, "empty": {}} {
		t.Run(what, func(t *testing.T) {
			draw := exec.Command(dot, "-Tsvg")
			draw.Stdin = strings.NewReader(Graph(s))
			var complaints strings.Builder
			draw.Stderr = &complaints
			svg, err := draw.Output()
			if err != nil || complaints.Len() > 0 {
				t.Fatalf("dot: %v\n%s\n%s", err, complaints.String(), Graph(s))
			}
			for i := range s.Nodes {
				if !strings.Contains(string(svg), "<title>"+s.Nodes[i].Name+"</title>") {
					t.Errorf("node %s is not in the picture", s.Nodes[i].Name)
				}
			}
			if got, want := strings.Count(string(svg), `class="node"`), len(s.Nodes)+len(s.Peers); got != want {
				t.Errorf("%d nodes in the picture, want %d", got, want)
			}
		})
	}
}
