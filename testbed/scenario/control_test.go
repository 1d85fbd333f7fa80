package scenario

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The control of everything else: with Flannel alone, exactly the pairs across
// locations fail. If they did not, no other scenario would prove anything.
func TestWithoutAgentLocationsAreIslands(t *testing.T) {
	beside(t)
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			spec := lab.Default()
			spec.NoAgent = true
			spec.Flannel.Backend = backend
			l := up(t, spec)

			m := must(l.Matrix(t.Context()))(t)
			if len(m.Pairs) != 42 {
				t.Fatalf("%d pairs, want 42", len(m.Pairs))
			}
			for _, p := range m.Pairs {
				if p.OK == p.Across() {
					t.Errorf("%s: ok=%t, but across locations=%t", p, p.OK, p.Across())
				}
			}
		})
	}
}

// What makes location c what it is: it reaches the internet by its router's
// address, and nobody reaches it.
func TestLocationBehindNAT(t *testing.T) {
	beside(t)
	l := up(t, islands())
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
func TestServiceOfAPIServerNeedsTheMesh(t *testing.T) {
	beside(t)
	l := up(t, islands())
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

// islands is the default lab without the agent.
func islands() lab.Spec {
	spec := lab.Default()
	spec.NoAgent = true
	return spec
}
