//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

const (
	roundTime = 5 * time.Second
	barePort  = 51999
)

// path is what is measured: a stream from one place to an address of another.
type path struct {
	what     string
	from, to *lab.Place
	address  string

	mbps, rtt []float64
	perPacket []float64 // bytes of a packet that enters the mesh's tunnel; 0: none does
}

// tunnels measures throughput and round trip on Flannel.
func tunnels(ctx context.Context, r *report) error {
	return tunnelsOn(ctx, r, "Throughput and round trip", "On Flannel. Members' packets go through its VXLAN to their gateway "+
		"and, on the other side, from it.", "Flannel", lab.Default())
}

// ciliumTunnels measures the same on each mode of Cilium, and in tunnel mode what
// its MTU and the way to the gateway have to do with it.
func ciliumTunnels(ctx context.Context, r *report) error {
	var failed error
	for _, c := range []struct {
		what string
		set  func(*lab.Spec)
	}{
		{"tunnel mode", func(s *lab.Spec) {}},
		{"tunnel mode, MTU 1420", func(s *lab.Spec) { s.Cilium.Flags = []string{"--mtu=1420"} }},
		{"tunnel mode, MTU 1420, --encapsulate=never", func(s *lab.Spec) {
			s.Cilium.Flags, s.AgentFlags = []string{"--mtu=1420"}, []string{"--encapsulate=never"}
		}},
		{"native mode", func(s *lab.Spec) { s.Cilium.Mode = lab.CiliumNative }},
		{"native mode, BPF host routing", func(s *lab.Spec) { s.Cilium.Mode, s.Cilium.HostRouting = lab.CiliumNative, lab.HostRoutingBPF }},
	} {
		spec := lab.Default()
		spec.CNI = lab.CNICilium
		c.set(&spec)
		if err := tunnelsOn(ctx, r, "Throughput on Cilium, "+c.what, "", "Cilium", spec); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", c.what, err))
		}
	}
	return failed
}

// tunnelsOn measures throughput and round trip over the mesh beside those over a
// tunnel of wireguard-go without a mesh, between the same two machines, taking
// turns.
func tunnelsOn(ctx context.Context, r *report, title, how, cni string, spec lab.Spec) error {
	l, down, err := up(ctx, r, "tunnel", spec)
	if err != nil {
		return err
	}
	defer down()
	before := load()
	a, b := l.Machine("a1"), l.Machine("b1") // gateways
	if err := bare(ctx, a, b); err != nil {
		return err
	}
	node := func(what, from, to string) *path {
		return &path{what: what, from: &l.Machine(from).Place, to: &l.Machine(to).Place, address: l.Machine(to).Addr.String()}
	}
	pod := func(what, from, to string) *path {
		return &path{what: what, from: &l.Pod(from).Place, to: &l.Pod(to).Place, address: l.Pod(to).Addr.String()}
	}
	paths := []*path{
		{what: "bare wireguard-go, gateway to gateway", from: &a.Place, to: &b.Place, address: bareB},
		node("mesh, gateway to gateway", "a1", "b1"),
		pod("mesh, pod to pod on gateways", "a1", "b1"),
		pod("mesh, pod to pod on members", "a3", "b2"),
		pod(cni+", pod to pod inside a location", "a1", "a3"),
		{what: "no tunnel, gateway to gateway", from: &a.Place, to: &b.Place, address: b.Public.String()},
	}
	for i, p := range paths {
		// Each has a server of its own, which ends with the lab.
		if _, err := p.to.Exec(ctx, "/usr/bin/iperf3", "--server", "--daemon", "--port", fmt.Sprint(5201+i)); err != nil {
			return err
		}
	}
	for round := range r.rounds {
		for i, p := range paths {
			if err := p.measure(ctx, a, 5201+i); err != nil {
				return fmt.Errorf("%s: %w", p.what, err)
			}
		}
		r.say("round %d of %d", round+1, r.rounds)
	}
	r.section(title, fmt.Sprintf("%s One TCP stream (iperf3, %d rounds of %.0f s, the paths taking turns) and 200 pings 5 ms apart; medians, and of "+
		"ratios the median of the rounds'. One lab; both ends of every path are on this machine's processors. The bare tunnel is the same "+
		"wireguard-go with the same MTU, between the gateways, without a mesh. *Bytes a packet* is what the stream's packets have on average where "+
		"they enter the mesh's tunnel on the gateway: with its offloads one of TCP's carries many segments. Load average before and after: %s, %s.",
		how, r.rounds, roundTime.Seconds(), before, load()))
	t := r.table("path", "Mbit/s", "÷ bare", "round trip ms", "÷ bare", "bytes a packet")
	reference := paths[0]
	for _, p := range paths {
		// Ratios round by round: what slows the machine down slows both.
		var speed, trip []float64
		for i := range p.mbps {
			speed = append(speed, p.mbps[i]/reference.mbps[i])
			trip = append(trip, p.rtt[i]/reference.rtt[i])
		}
		size := "-"
		if n := middle(p.perPacket); n > 0 {
			size = fmt.Sprintf("%.0f", n)
		}
		t.row(p.what, fmt.Sprintf("%.0f", middle(p.mbps)), fmt.Sprintf("%.2f", median(speed)), fmt.Sprintf("%.3f", middle(p.rtt)), fmt.Sprintf("%.2f", median(trip)), size)
	}
	return nil
}

// middle is the median, and leaves the order as it is.
func middle(values []float64) float64 { return median(append([]float64(nil), values...)) }

var rttLine = regexp.MustCompile(`rtt min/avg/max/mdev = [\d.]+/([\d.]+)/`)

// measure adds a round; gateway is the one whose tunnel the stream takes, if any.
func (p *path) measure(ctx context.Context, gateway *lab.Machine, port int) error {
	before, err := intoTunnel(ctx, gateway)
	if err != nil {
		return err
	}
	out, err := p.from.Exec(ctx, "/usr/bin/iperf3", "--client", p.address, "--port", fmt.Sprint(port), "--time", fmt.Sprint(int(roundTime.Seconds())), "--json")
	if err != nil {
		return err
	}
	var result struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return fmt.Errorf("iperf3: %w", err)
	}
	p.mbps = append(p.mbps, result.End.Received.BitsPerSecond/1e6)
	after, err := intoTunnel(ctx, gateway)
	if err != nil {
		return err
	}
	perPacket := 0.0
	// Fewer are probes of the mesh's own.
	if packets := after.packets - before.packets; packets > 1000 {
		perPacket = float64(after.bytes-before.bytes) / float64(packets)
	}
	p.perPacket = append(p.perPacket, perPacket)

	out, err = p.from.Exec(ctx, "/usr/bin/ping", "-n", "-q", "-i", "0.005", "-c", "200", p.address)
	if err != nil {
		return err
	}
	m := rttLine.FindStringSubmatch(out)
	if m == nil {
		return fmt.Errorf("ping printed no round trip:\n%s", out)
	}
	rtt, err := strconv.ParseFloat(m[1], 64)
	p.rtt = append(p.rtt, rtt)
	return err
}

// counted is what a link has sent.
type counted struct{ packets, bytes int }

// intoTunnel counts what entered a gateway's tunnel.
func intoTunnel(ctx context.Context, gateway *lab.Machine) (c counted, err error) {
	out, err := gateway.Shell(ctx, "cd /sys/class/net/kilo0/statistics && cat tx_packets tx_bytes")
	if err == nil {
		_, err = fmt.Sscan(out, &c.packets, &c.bytes)
	}
	return c, err
}

// Addresses inside the bare tunnel, which are nobody else's.
const bareA, bareB = "10.99.0.1", "10.99.0.2"

// bare makes a tunnel without a mesh between two machines.
func bare(ctx context.Context, a, b *lab.Machine) error {
	keys := [2]wgtypes.Key{}
	for i := range keys {
		var err error
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			return err
		}
	}
	for i, m := range []*lab.Machine{a, b} {
		other, own, theirs := b, bareA, bareB
		if m == b {
			other, own, theirs = a, bareB, bareA
		}
		if err := m.StartTunnel(ctx, "bare0"); err != nil {
			return err
		}
		if _, err := m.Shell(ctx, strings.NewReplacer(
			"KEY", keys[i].String(), "PORT", fmt.Sprint(barePort), "PEER", keys[1-i].PublicKey().String(),
			"ENDPOINT", fmt.Sprintf("%s:%d", other.Public, barePort), "OWN", own, "THEIRS", theirs,
		).Replace(`
			umask 077
			echo KEY >/run/bare.key
			wg set bare0 private-key /run/bare.key listen-port PORT peer PEER endpoint ENDPOINT allowed-ips THEIRS/32
			ip addr add OWN peer THEIRS dev bare0
			ip link set bare0 mtu 1420 up`)); err != nil {
			return err
		}
	}
	return a.Ping(ctx, netip.MustParseAddr(bareB))
}
