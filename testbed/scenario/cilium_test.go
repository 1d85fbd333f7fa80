package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The mesh on Cilium, in each of its modes, with strict rp_filter everywhere and
// one location behind NAT: everybody reaches everybody, by Services too, policies
// know pods and nodes of other locations, neither our agents' restart nor Cilium's
// costs a packet or changes what is there, and an agent that is uninstalled leaves
// nothing, and its node alone. A lab with Cilium leaves nothing on the machine.
func TestCilium(t *testing.T) {
	for i, mode := range ciliumModes() {
		t.Run(mode.name, func(t *testing.T) {
			if i > 1 {
				onRequest(t)
			}
			spec := lab.Default()
			spec.Sidecar = true                                   // what carries packets outlives the agent, as the kernel's device does
			spec.Locations[1].Nodes[1].PodNamespace = "elsewhere" // b2's pod
			mode.set(&spec)
			if spec.CNI == lab.CNICilium && spec.Cilium.Mode != lab.CiliumNative {
				inACloud(&spec)
			}
			name := labName(t)
			machine := traces(t, name)
			l := upWith(t, lab.Options{Name: name, HoldAgents: true}, spec)
			if i == 0 || everything() {
				t.Run("alone", func(t *testing.T) { ciliumAlone(t, l, mode.says) })
			}
			gone := []*lab.Machine{l.Machine("a3"), l.Machine("b1")} // a member, a gateway
			before := map[string]lab.NetState{}
			for _, n := range gone {
				before[n.Name] = ciliumState(t, n)
			}
			ok(t, l.StartAgents(t.Context()))
			t.Logf("whole after %s", whole(t, l, soon).Round(10*time.Millisecond))
			reachAll(t, l, 42, 56)
			if spec.Cilium.Mode == lab.CiliumNative {
				sourcesAreTrue(t, l)
			}
			ciliumAdoptsNothing(t, l)
			ciliumPoliciesAcross(t, l)
			ciliumServicesAcross(t, l)
			datagramsArrive(t, l, [2]string{"a3", "b2"}, [2]string{"b1", "c2"}, [2]string{"c2", "a1"}, [2]string{"a1", "b1"})
			agentsRestart(t, l.Pod("a3"), l.Pod("b2"), l.Machine("a1"), l.Machine("a3"), l.Machine("b1"))
			ciliumRestarts(t, l.Machine("a1"), l.Pod("a3"), l.Pod("b2"))
			ciliumAdoptsNothing(t, l)
			reachAll(t, l, 42, 56)
			for i, n := range gone {
				ok(t, n.UninstallAgent(t.Context()))
				if i == 0 {
					alone(t, l, n.Name)
				}
				eventually(t, soon, func() error { // kube-proxy forgets Services
					if diff := before[n.Name].Diff(ciliumState(t, n)); diff != "" {
						return fmt.Errorf("%s, before the agent came and after it went:\n%s", n.Name, diff)
					}
					return nil
				})
			}
			ok(t, l.Down(t.Context()))
			if after := traces(t, name); !slices.Equal(machine, after) {
				t.Errorf("before:\n%s\nafter:\n%s", strings.Join(machine, "\n"), strings.Join(after, "\n"))
			}
		})
	}
}

// inACloud makes a location of two subnets in a cloud, whose network drops what is
// not from and to its machines' own addresses: what kilo-vxlan is for.
func inACloud(spec *lab.Spec) {
	a := &spec.Locations[0]
	a.Cloud, a.Subnets = true, append(slices.Clone(a.Subnets), netip.MustParsePrefix("10.1.1.0/24"))
	a.Nodes[2].Subnet = 1 // a3; its gateway is a1
}

// The control of the above: without kilo-vxlan the same network lets nothing pass.
func TestCiliumInACloudWithoutEncapsulation(t *testing.T) {
	onRequest(t)
	spec := lab.Default()
	spec.CNI = lab.CNICilium
	inACloud(&spec)
	spec.AgentFlags = []string{"--encapsulate=crosssubnet"}
	l := up(t, spec)
	eventually(t, soon, func() error {
		if err := l.Pod("a3").Ping(t.Context(), l.Pod("b2").Addr); err != nil {
			return err // another subnet: encapsulated still
		}
		if l.Pod("a2").Ping(t.Context(), l.Pod("b2").Addr) == nil {
			return fmt.Errorf("a2, in its gateway's subnet, reaches other locations through a network that drops their addresses")
		}
		return nil
	})
}

// --encapsulate=never and crosssubnet on a network that carries any address, with
// each way of filtering by reverse path.
func TestCiliumWithoutEncapsulation(t *testing.T) {
	onRequest(t)
	for _, c := range []struct {
		encapsulate string
		filter      lab.RPFilter
		mode        lab.CiliumMode
	}{
		{"never", lab.RPFilterStrict, lab.CiliumTunnel},
		{"never", lab.RPFilterOff, lab.CiliumNative},
		{"crosssubnet", lab.RPFilterLoose, lab.CiliumNative},
		{"always", lab.RPFilterOff, lab.CiliumTunnel},
		{"always", lab.RPFilterLoose, lab.CiliumNative},
	} {
		t.Run(fmt.Sprintf("%s-%s-%s", c.encapsulate, c.filter, c.mode), func(t *testing.T) {
			spec := lab.Default()
			spec.CNI, spec.Cilium.Mode, spec.RPFilter = lab.CNICilium, c.mode, c.filter
			spec.AgentFlags = []string{"--encapsulate=" + c.encapsulate}
			l := up(t, spec)
			whole(t, l, soon)
			reachAll(t, l, 42, 56)
			has := must(l.Machine("a3").Shell(t.Context(), "ip -o link show dev kilo-vxlan 2>/dev/null || true"))(t) != ""
			if has != (c.encapsulate == "always") {
				t.Errorf("a3 has a kilo-vxlan: %t", has)
			}
		})
	}
}

// ciliumAdoptsNothing looks whether Cilium took a link of the mesh for one of its
// devices, a route of it into main, or a WireGuard address for one of the node's,
// and whether kilo0 has an address.
func ciliumAdoptsNothing(t *testing.T, l *lab.Lab) {
	t.Helper()
	wireGuard := wireGuardAddresses(t, l)
	for _, n := range l.Nodes() {
		if config := must(n.CiliumGet(t.Context(), "config"))(t); strings.Contains(config, `"kilo`) {
			t.Errorf("%s: Cilium's configuration knows links of the mesh: %s", n.Name, config)
		}
		known := strings.Fields(must(n.CiliumShell(t.Context(), "db/show node-addresses"))(t))
		if !slices.Contains(known, n.Addr.String()) || slices.Contains(known, wireGuard[n.Name]) {
			t.Errorf("%s: Cilium's addresses of the node should have %s and not %s: %s", n.Name, n.Addr, wireGuard[n.Name], known)
		}
		if routes := must(n.Shell(t.Context(), "ip route show table main; ip -6 route show table main"))(t); strings.Contains(routes, "kilo") {
			t.Errorf("%s: main has routes of the mesh:\n%s", n.Name, routes)
		}
		if addresses := must(n.Shell(t.Context(), "ip -o addr show dev kilo0; ip -o addr show dev kilo-vxlan 2>/dev/null || true"))(t); addresses != "" {
			t.Errorf("%s: links of the mesh have addresses:\n%s", n.Name, addresses)
		}
	}
}

// ciliumServicesAcross has everybody elsewhere call ClusterIPs of single backends:
// pods on a member and behind NAT, and a process on a node. A pod sees the pods that
// call it as what they are. The Services go again.
func ciliumServicesAcross(t *testing.T, l *lab.Lab) {
	t.Helper()
	node := l.Machine("b2")
	ok(t, node.StartEcho(t.Context()))
	atNode := must(l.ExposeAddress(t.Context(), "at-node", netip.AddrPortFrom(node.Addr, lab.EchoPort)))(t)
	for _, c := range []struct {
		at      netip.AddrPort
		backend *lab.Place
	}{
		{must(l.Expose(t.Context(), "at-b2", l.Pod("b2")))(t), &l.Pod("b2").Place},
		{must(l.Expose(t.Context(), "at-c2", l.Pod("c2")))(t), &l.Pod("c2").Place},
		{atNode, &node.Place},
	} {
		for _, from := range callersOf(l, c.backend) {
			fromPod := slices.ContainsFunc(l.PodPlaces(), func(p *lab.Place) bool { return p.Name == from.Name })
			eventually(t, soon, func() error { // who answers for Services learns of it
				seen, err := from.SeenAt(t.Context(), c.at)
				if err == nil && fromPod && c.at != atNode && seen != from.Addr {
					err = fmt.Errorf("seen as %s, want %s", seen, from.Addr)
				}
				if err != nil {
					return fmt.Errorf("%s to the service of %s: %w", from.Name, c.backend.Name, err)
				}
				return nil
			})
		}
	}
	must(l.Kubectl(t.Context(), "delete", "service/at-node", "endpointslice/at-node", "service/at-c2"))(t)
	must(l.Kubectl(t.Context(), "delete", "service", "--namespace="+l.Pod("b2").Namespace, "at-b2"))(t)
}

// datagramsArrive sends datagrams one way, of the size that the tunnels between
// locations carry and of the largest that a pod may send. The first of a size may
// teach its sender what passes; all others arrive.
func datagramsArrive(t *testing.T, l *lab.Lab, pairs ...[2]string) {
	t.Helper()
	const headers, times = 28, 6
	for _, pair := range pairs {
		from, to := l.Pod(pair[0]), l.Pod(pair[1])
		largest, err := strconv.Atoi(strings.TrimSpace(must(from.Shell(t.Context(),
			"ip -o route get "+to.Addr.String()+" | grep -o 'mtu [0-9]*' | cut -d' ' -f2 | grep . || cat /sys/class/net/eth0/mtu"))(t)))
		ok(t, err)
		sizes := slices.Compact(slices.Sorted(slices.Values([]int{1420, 1421, largest})))
		conn := must(from.Dial(t.Context(), "udp", netip.AddrPortFrom(to.Addr, lab.EchoPort).String()))(t)
		before := must(to.Datagrams(t.Context()))(t)
		for _, size := range sizes {
			for range times {
				datagram := make([]byte, min(size, largest)-headers)
				if _, err := conn.Write(datagram); err != nil {
					_, _ = conn.Write(datagram) // what the one before met is said at this one, in its place
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		conn.Close()
		eventually(t, soon, func() error {
			arrived := map[int]int{}
			for _, n := range must(to.Datagrams(t.Context()))(t)[len(before):] {
				arrived[n+headers]++
			}
			for _, size := range sizes {
				if arrived[min(size, largest)] < times-1 {
					return fmt.Errorf("%s → %s, whose pod may send %d bytes: of %d datagrams of each size arrived (size: number) %v", from.Name, to.Name, largest, times, arrived)
				}
			}
			t.Logf("%s → %s, whose pod may send %d bytes: of %d datagrams of each size arrived (size: number) %v", from.Name, to.Name, largest, times, arrived)
			return nil
		})
	}
}

// alone looks whether the pod of a node without the mesh, and no other, has lost
// those of other locations.
func alone(t *testing.T, l *lab.Lab, node string) {
	t.Helper()
	eventually(t, soon, func() error {
		for _, p := range must(l.Matrix(t.Context()))(t).Pairs {
			involved := l.Pod(p.From).Node == node || l.Pod(p.To).Node == node
			if lost := involved && p.Across(); p.OK == lost {
				return fmt.Errorf("%s has no agent: %s: ok=%t, want %t", node, p, p.OK, !lost)
			}
		}
		return nil
	})
}

// agentsRestart restarts agents of ours while one pod pings another.
func agentsRestart(t *testing.T, from, to *lab.Pod, nodes ...*lab.Machine) {
	t.Helper()
	for _, n := range nodes {
		before := must(n.NetState(t.Context()))(t)
		pings := must(from.StartPing(t.Context(), to.Addr, 20*time.Millisecond))(t)
		ok(t, n.RestartAgent(t.Context()))
		ok(t, n.WaitForAgent(t.Context(), 30*time.Second))
		if stats := must(pings.Stop(t.Context()))(t); stats.Lost() > 0 {
			t.Errorf("%s → %s, while the agent of %s restarts: %s", from.Name, to.Name, n.Name, stats)
		}
		eventually(t, soon, func() error {
			after, err := n.NetState(t.Context())
			if diff := before.Diff(after); err == nil && diff != "" {
				err = fmt.Errorf("%s, before the restart of its agent and after:\n%s", n.Name, diff)
			}
			return err
		})
	}
}
