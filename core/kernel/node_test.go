package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

// setup is what one end of the tunnel is told.
type setup struct {
	Private  string
	Peer     model.Key
	Self     netip.Addr // on the LAN
	Other    netip.Addr
	Overlay  netip.Addr // behind this node
	Opposite netip.Prefix
}

func (s setup) wanted(private wgtypes.Key) state.State {
	return state.State{
		Links: []state.Link{{Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Tunnel: &state.Tunnel{
			Key: model.Key(private.PublicKey()), Port: 51820, Mark: state.Mark,
			Peers: []state.Peer{{Key: s.Peer, Endpoint: netip.AddrPortFrom(s.Other, 51820),
				// The endpoint's own address rides the tunnel too.
				AllowedIPs: []netip.Prefix{s.Opposite, netip.PrefixFrom(s.Other, 32)}}},
		}}},
		Routes: []state.Route{
			{Table: state.TableOverlay, Dst: s.Opposite, Type: state.Unicast, Device: "kilo0", Source: s.Overlay, MTU: 1400},
			{Table: state.TableOverlay, Dst: s.Opposite, Type: state.Unreachable, Metric: state.MetricLast},
		},
		Rules: []state.Rule{
			{Priority: state.PriorityTunnel, Proto: "udp", SrcPort: 51820, Table: state.TableMain},
			{Priority: state.PriorityTunnel, Proto: "udp", DstPort: 51820, Table: state.TableMain},
			{Priority: state.PriorityOverlay, Invert: true, Mark: state.Mark, Table: state.TableOverlay},
		},
	}
}

// join brings one end up: device, addresses, State.
func (s setup) join() (*Kernel, error) {
	private, err := wgtypes.ParseKey(s.Private)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if _, err := wireguard.Ensure(ctx, wireguard.Options{Interface: "kilo0", Port: 51820}); err != nil {
		return nil, err
	}
	k, err := New(Options{Interface: "kilo0", PrivateKey: private})
	if err != nil {
		return nil, err
	}
	report, err := apply.Run(ctx, k, s.wanted(private))
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, report)
	}
	return k, nil
}

// node is the other end, in a process and namespaces of its own: it answers on
// TCP port 7 with what it is told and who said it.
func node(args []string) int {
	err := func() error {
		var s setup
		if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
			return err
		}
		for { // until the test has put the cable in
			if _, err := net.InterfaceByName("eth0"); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := plug(s); err != nil {
			return err
		}
		if _, err := s.join(); err != nil {
			return err
		}
		l, err := net.Listen("tcp", ":7")
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, c.RemoteAddr())
				go io.Copy(c, c)
			}
		}()
		fmt.Println("ready")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func plug(s setup) error {
	return sh(fmt.Sprintf("ip addr add %s/24 dev eth0; ip link set eth0 up; ip addr add %s/32 dev lo", s.Self, s.Overlay))
}

// Two nodes, two processes, a wire: what goes to the other's overlay address
// goes through the tunnel, and on the wire there is WireGuard only.
func TestTwoNodes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		keyA, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		keyB, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		a := setup{Private: keyA.String(), Peer: model.Key(keyB.PublicKey()),
			Self: netip.MustParseAddr("192.0.2.1"), Other: netip.MustParseAddr("192.0.2.2"),
			Overlay: netip.MustParseAddr("10.1.0.1"), Opposite: netip.MustParsePrefix("10.2.0.0/24")}
		b := setup{Private: keyB.String(), Peer: model.Key(keyA.PublicKey()),
			Self: a.Other, Other: a.Self,
			Overlay: netip.MustParseAddr("10.2.0.1"), Opposite: netip.MustParsePrefix("10.1.0.0/24")}
		config, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		other := nstest.Start(t, "node", string(config))
		nstest.Sh(t, "ip link add eth0 type veth peer name eth0 netns "+strconv.Itoa(other.Pid))
		if line := other.Line(t); line != "ready" {
			t.Fatal(line)
		}
		if err := plug(a); err != nil {
			t.Fatal(err)
		}
		// Nothing but WireGuard may pass the wire.
		nstest.Sh(t, `nft -f - <<-'EOF'
			table inet wire {
				chain out { type filter hook postrouting priority 400; oifname "eth0" udp sport 51820 meta mark 0x1000 accept; oifname "eth0" ip protocol { tcp, udp, icmp } counter name clear drop; }
				counter clear { }
			}
			EOF`)
		k, err := a.join()
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()

		c, err := net.DialTimeout("tcp", "10.2.0.1:7", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		from := make([]byte, 64)
		n, err := c.Read(from)
		if err != nil || !strings.HasPrefix(string(from[:n]), "10.1.0.1:") {
			t.Errorf("the other end sees %q: %v", from[:n], err)
		}
		// Segments of the path's MTU, and many of them.
		sent := strings.Repeat("kilo", 1<<18)
		go io.WriteString(c, sent)
		if got, err := io.ReadAll(io.LimitReader(c, int64(len(sent)))); err != nil || string(got) != sent {
			t.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
		}
		if text := nstest.Sh(t, "nft list counter inet wire clear"); !strings.Contains(text, "packets 0 bytes 0") {
			t.Errorf("in clear on the wire: %s", text)
		}

		peers, err := k.Peers(context.Background())
		if err != nil || len(peers) != 1 {
			t.Fatal(peers, err)
		}
		p := peers[0]
		if p.Key != a.Peer || p.Endpoint != netip.MustParseAddrPort("192.0.2.2:51820") ||
			time.Since(p.LastHandshake) > time.Minute || p.ReceivedBytes < int64(len(sent)) || p.SentBytes < int64(len(sent)) {
			t.Errorf("%+v", p)
		}
		now, err := k.Observe(context.Background())
		if err != nil || !now.Links[0].Tunnel.Peers[0].Alive {
			t.Errorf("the peer is not alive: %v\n%s", err, now)
		}
		// At rest nothing is written, endpoint included.
		if c := state.Diff(now, a.wanted(keyA)); c != nil {
			t.Errorf("at rest: %v", c)
		}
	}, tools...)
}
