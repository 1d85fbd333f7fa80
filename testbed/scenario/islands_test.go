package scenario

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// TestIslands is what the lab does without us, one thing after the other on one
// lab: if locations were no islands, no other scenario would prove anything.
func TestIslands(t *testing.T) {
	l := up(t, islands())
	for _, s := range []struct {
		name string
		run  func(*testing.T, *lab.Lab)
	}{
		{"pairs across locations fail", func(t *testing.T, l *lab.Lab) { onlyLocationsAreWhole(t, l, 42) }},
		{"a location behind NAT", locationBehindNAT},
		{"the API server's Service needs the mesh", serviceOfAPIServerNeedsTheMesh},
		{"partition", partition},
		{"a machine loses power", powerCut},
		{"a node joins and leaves", joinAndLeave},
		{"another lab, with host-gw, comes and goes", anotherLab},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// islands is the default lab without the agent.
func islands() lab.Spec {
	spec := lab.Default()
	spec.NoAgent = true
	return spec
}

// With Flannel alone, exactly the pairs across locations fail.
func onlyLocationsAreWhole(t *testing.T, l *lab.Lab, pairs int) {
	t.Helper()
	m := must(l.Matrix(t.Context()))(t)
	if len(m.Pairs) != pairs {
		t.Fatalf("%d pairs, want %d", len(m.Pairs), pairs)
	}
	for _, p := range m.Pairs {
		if p.OK == p.Across() {
			t.Errorf("%s: ok=%t, but across locations=%t", p, p.OK, p.Across())
		}
	}
}

// What makes location c what it is: it reaches the internet by its router's
// address, and nobody reaches it.
func locationBehindNAT(t *testing.T, l *lab.Lab) {
	a1, c1, c2 := l.Machine("a1"), l.Machine("c1"), l.Machine("c2")

	seen := must(a1.Capture(t.Context(), "eth1", "icmp[icmptype] == icmp-echo"))(t)
	ok(t, c1.Ping(t.Context(), a1.Public))
	ok(t, c2.Ping(t.Context(), a1.Public))
	packets := must(seen.Stop(t.Context()))(t)
	if len(packets) == 0 {
		t.Fatal("no request arrived")
	}
	for _, p := range packets {
		if want := "IP " + l.Router("c").Addr.String() + " > "; !strings.Contains(p, want) {
			t.Errorf("packet from c is not from its router: %s", p)
		}
	}
	if err := a1.Ping(t.Context(), c1.Addr); err == nil {
		t.Errorf("a1 reaches %s, an address behind NAT", c1.Addr)
	}
}

// The kubernetes Service leads to the API server's private address: from
// elsewhere only the mesh can make it work, while nodes reach the API server's
// public address without.
func serviceOfAPIServerNeedsTheMesh(t *testing.T, l *lab.Lab) {
	service := netip.MustParseAddrPort("10.96.0.1:443")
	public := netip.AddrPortFrom(l.Machine("cp").Public, 6443)

	for _, n := range l.Nodes() {
		if conn, err := n.Dial(t.Context(), "tcp", public.String()); err != nil {
			t.Errorf("%s does not reach the API server: %v", n.Name, err)
		} else {
			conn.Close()
		}
	}
	_, err := l.Pod("a1").Exec(t.Context(), "/usr/bin/curl", "--silent", "--insecure", "--max-time", "2", "https://"+service.String()+"/version")
	if err == nil {
		t.Errorf("a pod in a reaches %s without a mesh", service)
	}
}

// Networks cut in one direction carry the other, cut only what they are told,
// and heal.
func partition(t *testing.T, l *lab.Lab) {
	a1, b1, c1, c2 := l.Machine("a1"), l.Machine("b1"), l.Machine("c1"), l.Machine("c2")
	before := must(a1.NetState(t.Context()))(t)

	ok(t, l.PartitionOneWay(t.Context(), "a1", "b1"))
	arrives := must(b1.Capture(t.Context(), "eth1", "icmp and src "+a1.Public.String()))(t)
	returns := must(a1.Capture(t.Context(), "eth1", "icmp[icmptype] == icmp-echo and src "+b1.Public.String()))(t)
	if a1.Ping(t.Context(), b1.Public) == nil || b1.Ping(t.Context(), a1.Public) == nil {
		t.Error("an echo came back over a network cut in one direction")
	}
	if got := must(arrives.Stop(t.Context()))(t); len(got) != 0 {
		t.Errorf("packets from a1 to b1 pass: %q", got)
	}
	if got := must(returns.Stop(t.Context()))(t); len(got) == 0 {
		t.Error("packets from b1 to a1 do not pass")
	}
	ok(t, l.Machine("a2").Ping(t.Context(), b1.Public))

	// One of two nodes behind the same router.
	ok(t, l.Partition(t.Context(), "a1", "c1"))
	if c1.Ping(t.Context(), a1.Public) == nil {
		t.Error("c1 still reaches a1")
	}
	ok(t, c2.Ping(t.Context(), a1.Public))

	// A whole location, inside which all goes on.
	ok(t, l.Partition(t.Context(), "c", "a"))
	if c2.Ping(t.Context(), a1.Public) == nil {
		t.Error("c2 still reaches a1")
	}
	ok(t, c2.Ping(t.Context(), b1.Public))
	ok(t, l.Pod("c1").Ping(t.Context(), l.Pod("c2").Addr))

	ok(t, l.HealAll(t.Context()))
	ok(t, a1.Ping(t.Context(), b1.Public))
	ok(t, c2.Ping(t.Context(), a1.Public))
	if diff := before.Diff(must(a1.NetState(t.Context()))(t)); diff != "" {
		t.Errorf("cuts changed a machine:\n%s", diff)
	}
}

// A machine that loses power falls silent at once, keeps its disk, and comes
// back as a working node.
func powerCut(t *testing.T, l *lab.Lab) {
	a2 := l.Machine("a2")
	must(a2.Shell(t.Context(), "mkdir -p /var/lib/kilo && echo kept >/var/lib/kilo/file; echo lost >/run/file"))(t)

	ok(t, a2.PowerOff(t.Context()))
	if err := l.Pod("a1").Ping(t.Context(), l.Pod("a2").Addr); err == nil {
		t.Error("a pod of a dead machine answers")
	}
	ok(t, a2.PowerOn(t.Context()))
	eventually(t, soon, func() error { return l.Pod("a1").Ping(t.Context(), l.Pod("a2").Addr) })
	if got := must(a2.Shell(t.Context(), "cat /var/lib/kilo/file; ls /run/file 2>/dev/null || true"))(t); got != "kept\n" {
		t.Errorf("disk and /run after the power cut: %q", got)
	}
}

// A node that joins works, and one that leaves is gone from the cluster.
func joinAndLeave(t *testing.T, l *lab.Lab) {
	must(l.Join(t.Context(), "b", lab.Node{Name: "b3", Pods: 1}))(t)
	eventually(t, soon, func() error { return l.Pod("b3").Ping(t.Context(), l.Pod("b1").Addr) })

	ok(t, l.Leave(t.Context(), "b3"))
	if out := must(l.Kubectl(t.Context(), "get", "nodes,pods", "--output=name"))(t); strings.Contains(out, "b3") {
		t.Errorf("b3 is still there:\n%s", out)
	}
}

// Two labs with equal names inside live side by side; the end of one does not
// touch the other, and leaves nothing on the machine.
func anotherLab(t *testing.T, l *lab.Lab) {
	name := labName(t)
	before := traces(t, name)
	spec := islands()
	spec.Flannel.Backend = "host-gw"
	other := upNamed(t, name, spec)
	if while := traces(t, name); slices.Equal(before, while) {
		t.Fatal("a lab that is up leaves no traces: this test sees nothing")
	}
	held := namespaces(t, other)
	onlyLocationsAreWhole(t, l, 42)
	onlyLocationsAreWhole(t, other, 42)

	ok(t, other.Down(t.Context()))
	if after := traces(t, name); !slices.Equal(before, after) {
		t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	for pid, ns := range processNamespaces(t) {
		if where, yes := held[ns]; yes {
			t.Errorf("process %s still holds %s", pid, where)
		}
	}
	if _, err := lab.Open(name); !errors.Is(err, lab.ErrNoLab) {
		t.Errorf("Open after Down: %v", err)
	}
	onlyLocationsAreWhole(t, l, 42)
}
