package plan_test

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// BenchmarkPlan is what a pass of the agent thinks when nothing is to be done: a
// plan, and its difference from what the kernel holds. Beside the clock's time
// stands the processor's, which other work on the machine does not lengthen.
func BenchmarkPlan(b *testing.B) {
	for _, size := range []struct{ nodes, locations int }{{10, 3}, {100, 5}, {1000, 20}, {10000, 200}} {
		s := largeCluster(size.nodes, size.locations)
		own := plan.Locations(s)[0]
		for _, who := range []struct {
			role plan.Role
			node *model.Node
		}{{plan.Gateway, own.Gateway}, {plan.Member, own.Nodes[len(own.Nodes)-1]}} {
			f := factsOf(s, who.node.Name)
			a := flannel.New(flannel.Options{})
			observed, report := plan.Plan(s, f, a)
			if report.Role != who.role {
				b.Fatalf("%s is %s, want %s: %v", who.node.Name, report.Role, who.role, report.Waiting)
			}
			// As core/kernel reads it.
			observed.Normalize()
			b.Run(fmt.Sprintf("nodes=%d/locations=%d/%s", size.nodes, size.locations, who.role), func(b *testing.B) {
				b.ReportAllocs()
				began := processorTime(b)
				for b.Loop() {
					got, _ := plan.Plan(s, f, a)
					if d := state.Diff(observed, got); len(d) > 0 {
						b.Fatal(d)
					}
				}
				b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// processorTime is what this process has had so far, garbage collection included.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func largeCluster(nodes, locations int) model.Snapshot {
	s := model.Snapshot{WireGuardSubnets: prefixes("10.4.0.0/16"), ServicePrefixes: prefixes("10.96.0.0/12")}
	for i := range nodes {
		l := i % locations
		n := model.Node{Name: fmt.Sprintf("n%05d", i), UID: fmt.Sprint(i), Ready: true, Spoken: true, Key: keyOf(fmt.Sprint(i)), TunnelMTU: 1420,
			Location:    fmt.Sprintf("l%03d", l),
			PodPrefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0}), 24)},
		}
		n.InternalIPs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(l), byte(i >> 8), byte(i)}), 24)}
		if i < locations {
			n.Epoch = 1
			n.WireGuardIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 4, byte(i >> 8), byte(i)})}
			n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), Port: 51820}
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.Sort()
	return s
}
