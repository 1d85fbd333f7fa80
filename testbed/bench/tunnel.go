//go:build linux

package main

import (
	"context"
	"encoding/json"
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
	rounds    = 5
	roundTime = 5 * time.Second
	barePort  = 51999
)

// path is what is measured: a stream from one place to an address of another.
type path struct {
	what     string
	from, to *lab.Place
	address  string

	mbps, rtt []float64
}

// tunnels measures throughput and round trip over the mesh beside those over a
// tunnel of wireguard-go without a mesh, between the same two machines, taking
// turns.
func tunnels(ctx context.Context, r *report) error {
	l, down, err := up(ctx, r, "tunnel", lab.Default())
	if err != nil {
		return err
	}
	defer down()
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
		pod("Flannel, pod to pod inside a location", "a1", "a3"),
		{what: "no tunnel, gateway to gateway", from: &a.Place, to: &b.Place, address: b.Public.String()},
	}
	for i, p := range paths {
		// Each has a server of its own, which ends with the lab.
		if _, err := p.to.Exec(ctx, "/usr/bin/iperf3", "--server", "--daemon", "--port", fmt.Sprint(5201+i)); err != nil {
			return err
		}
	}
	for round := range rounds {
		for i, p := range paths {
			if err := p.measure(ctx, 5201+i); err != nil {
				return fmt.Errorf("%s: %w", p.what, err)
			}
		}
		r.say("round %d of %d", round+1, rounds)
	}
	r.section("Throughput and round trip",
		fmt.Sprintf("One TCP stream (iperf3, %d rounds of %.0f s, the paths taking turns) and 200 pings 5 ms apart; medians, and of ratios the "+
			"median of the rounds'. One lab; both ends of every path are on this machine's processors. The bare tunnel is the same wireguard-go with "+
			"the same MTU, between the gateways, without a mesh. Members' packets go through Flannel's VXLAN to their gateway and, on the other "+
			"side, from it.", rounds, roundTime.Seconds()))
	t := r.table("path", "Mbit/s", "÷ bare", "round trip ms", "÷ bare")
	reference := paths[0]
	for _, p := range paths {
		// Ratios round by round: what slows the machine down slows both.
		var speed, trip []float64
		for i := range p.mbps {
			speed = append(speed, p.mbps[i]/reference.mbps[i])
			trip = append(trip, p.rtt[i]/reference.rtt[i])
		}
		t.row(p.what, fmt.Sprintf("%.0f", middle(p.mbps)), fmt.Sprintf("%.2f", median(speed)), fmt.Sprintf("%.3f", middle(p.rtt)), fmt.Sprintf("%.2f", median(trip)))
	}
	return nil
}

// middle is the median, and leaves the order as it is.
func middle(values []float64) float64 { return median(append([]float64(nil), values...)) }

var rttLine = regexp.MustCompile(`rtt min/avg/max/mdev = [\d.]+/([\d.]+)/`)

func (p *path) measure(ctx context.Context, port int) error {
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
