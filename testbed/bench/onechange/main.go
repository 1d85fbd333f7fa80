//go:build linux

// Command onechange counts what one node's change costs in a mesh of a thousand:
// Changes, and the messages in which they reach the kernel, as a tap on netlink
// (nlmon) sees them. It runs in a guest, whose kernel has nlmon and WireGuard,
// once for a gateway and once for a member, and prints a Count a line, as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/core/wireguard"
	"github.com/kilo-overlay/kilo/testbed/bench/crowd"
	"github.com/kilo-overlay/kilo/testbed/bench/onechange/count"
)

const (
	nodes     = 1000
	locations = 20
)

func main() {
	if err := run(); err != nil {
		fmt.Println("onechange:", err)
		os.Exit(1)
	}
}

// run does one role in this process, and both in one of their own each: a role
// wants an empty network namespace.
func run() error {
	if len(os.Args) == 2 {
		return measure(os.Args[1])
	}
	for _, role := range []plan.Role{plan.Gateway, plan.Member} {
		cmd := exec.Command(os.Args[0], string(role))
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", role, err)
		}
	}
	return nil
}

// change is something that happens to one node.
type change struct {
	what string
	to   func(model.Snapshot) model.Snapshot
}

func changes() []change {
	// An ordinary node of another location, and that location's gateway.
	const ordinary, gateway = "n00041", "n00001"
	edit := func(name string, f func(*model.Node)) func(model.Snapshot) model.Snapshot {
		return func(s model.Snapshot) model.Snapshot {
			s.Nodes = append([]model.Node(nil), s.Nodes...)
			f(s.Node(name))
			return s
		}
	}
	return []change{
		{"nothing", func(s model.Snapshot) model.Snapshot { return s }},
		{"a node joins another location", func(s model.Snapshot) model.Snapshot {
			s.Nodes = append([]model.Node(nil), s.Nodes...)
			// The next number but one that falls into location l001.
			s.Nodes = append(s.Nodes, crowd.Node(nodes+1, locations))
			s.Sort()
			return s
		}},
		{"a node gets another address", edit(ordinary, func(n *model.Node) {
			n.InternalIPs = []netip.Prefix{netip.MustParsePrefix("172.16.250.250/16")}
		})},
		{"a node leaves", func(s model.Snapshot) model.Snapshot {
			var left []model.Node
			for _, n := range s.Nodes {
				if n.Name != ordinary {
					left = append(left, n)
				}
			}
			s.Nodes = left
			return s
		}},
		{"a gateway's endpoint moves", edit(gateway, func(n *model.Node) { n.Endpoint.Port = 51999 })},
	}
}

func measure(role string) error {
	ctx := context.Background()
	s := crowd.Snapshot(nodes, locations)
	self := s.Node("n00000") // the gateway of l000
	if role == string(plan.Member) {
		self = s.Node("n00020") // one of its members
	}
	if err := sh(fmt.Sprintf(`
		ip link set lo up
		ip link add eth0 type bridge
		ip addr add %s dev eth0
		ip link set eth0 up
		ip link add flannel.1 type vxlan id 1 dev eth0 dstport 8472
		ip link set flannel.1 mtu 1450 up
		ip addr add %s/32 dev flannel.1
		ip link add nlmon0 type nlmon
		ip link set nlmon0 up`, self.InternalIPs[0], self.PodPrefixes[0].Addr())); err != nil {
		return err
	}
	private, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return err
	}
	self.Key = model.Key(private.PublicKey())
	silent := slog.New(slog.DiscardHandler)
	if _, err := wireguard.Ensure(ctx, wireguard.Options{Interface: "kilo0", Mode: wireguard.Kernel, Log: silent}); err != nil {
		return err
	}
	k, err := kernel.New(kernel.Options{Interface: "kilo0", PrivateKey: private, Log: silent})
	if err != nil {
		return err
	}
	defer k.Close()

	facts := plan.Facts{
		Self: self.Name, Interface: "kilo0", Port: 51820, Key: self.Key, TunnelMTU: 1420, AdapterKnown: true,
		Adapter: adapter.Facts{CNI: "flannel", PodPrefixes: self.PodPrefixes, ClusterPrefixes: []netip.Prefix{crowd.Pods()}},
	}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Name != self.Name {
			p := n.PodPrefixes[0]
			facts.Adapter.NextHops = append(facts.Adapter.NextHops, adapter.NextHop{Prefix: p, Via: p.Addr(), Device: "flannel.1", OnLink: true, MTU: 1450})
		}
	}
	wanted := func(s model.Snapshot) (state.State, error) {
		w, report := plan.Plan(s, facts, flannel.New(flannel.Options{}))
		if string(report.Role) != role {
			return w, fmt.Errorf("the plan is %s's, want %s's: %v", report.Role, role, report.Waiting)
		}
		return w, nil
	}
	base, err := wanted(s)
	if err != nil {
		return err
	}
	bring := func(w state.State) (apply.Report, error) {
		r, err := apply.Run(ctx, k, w)
		if err == nil && !r.Complete {
			err = errors.New("not everything was observed")
		}
		return r, err
	}
	began := time.Now()
	if _, err := bring(base); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: %d routes, %d peers made in %.1f s\n", role, len(base.Routes), len(base.Links[0].Tunnel.Peers), time.Since(began).Seconds())

	tap, err := count.Tap("nlmon0")
	if err != nil {
		return err
	}
	defer tap.Close()
	for _, c := range changes() {
		// Each begins from the same mesh, at rest.
		if r, err := bring(base); err != nil {
			return err
		} else if again, err := bring(base); err != nil || len(again.Done) > 0 {
			return fmt.Errorf("%s: not at rest: %v %w (after %d changes)", c.what, again.Done, err, len(r.Done))
		}
		w, err := wanted(c.to(s))
		if err != nil {
			return err
		}
		if err := tap.Reset(); err != nil {
			return err
		}
		r, err := bring(w)
		if err != nil {
			return err
		}
		messages, err := tap.Count()
		if err != nil {
			return err
		}
		out := count.Count{Role: role, What: c.what, Changes: kinds(r.Done), Messages: messages}
		if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
			return err
		}
	}
	return nil
}

// kinds counts Changes by the first words of what they print.
func kinds(done []state.Change) map[string]int {
	out := map[string]int{}
	for _, c := range done {
		out[strings.TrimPrefix(fmt.Sprintf("%T", c), "state.")]++
	}
	return out
}

func sh(script string) error {
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}
