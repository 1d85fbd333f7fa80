package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A pod sees a pod of another location under the pod's own address, and a node
// under its InternalIP, whoever is a gateway and whoever a member.
func sourcesAreTrue(t *testing.T, l *lab.Lab) {
	for _, to := range l.Pods() {
		for _, from := range callersOf(l, &to.Place) {
			// An API server's host is given time, as in reachAll; a source is never
			// another's, not even for a moment.
			var seen netip.Addr
			eventually(t, soon, func() (err error) {
				if seen, err = from.SeenBy(t.Context(), to); err != nil {
					err = fmt.Errorf("%s does not see %s: %w", to.Name, from.Name, err)
				}
				return err
			})
			if seen != from.Addr {
				t.Errorf("%s sees %s as %s, want %s", to.Name, from.Name, seen, from.Addr)
			}
		}
	}
	// And a node sees a pod: Flannel masquerades that with nobody's help.
	from, to := l.Pod("a3"), l.Machine("b2")
	packets := must(to.Capture(t.Context(), "", fmt.Sprintf("icmp[icmptype] == icmp-echo and dst %s", to.Addr)))(t)
	ok(t, from.Ping(t.Context(), to.Addr))
	seen := must(packets.Stop(t.Context()))(t)
	if len(seen) == 0 {
		t.Errorf("%s sees no packet of %s", to.Name, from.Name)
	}
	for _, p := range seen {
		if !strings.Contains(p, fmt.Sprintf(" %s > %s:", from.Addr, to.Addr)) {
			t.Errorf("%s sees %s as another: %s", to.Name, from.Name, p)
		}
	}
}

// callersOf are all pods and nodes of other locations than the place's.
func callersOf(l *lab.Lab, to *lab.Place) []*lab.Place {
	var callers []*lab.Place
	for _, p := range append(l.PodPlaces(), l.NodePlaces()...) {
		if p.Location != to.Location {
			callers = append(callers, p)
		}
	}
	return callers
}

// The control of sourcesAreTrue: with iptables, Flannel rewrites what it
// forwards for others as soon as our chain lets it. Packets that carry
// WireGuard's mark are none of our chain's business, so a rule that gives one
// pod's packets that mark, just before, is enough to see it.
func flannelRewritesTransit(t *testing.T, l *lab.Lab) {
	from, to, gateway := l.Pod("a3"), l.Pod("b2"), l.Machine("a1")
	must(gateway.Shell(t.Context(), fmt.Sprintf(`nft -f - <<-EOF
		table ip control {
			chain last-before-ours {
				type filter hook postrouting priority srcnat - 2;
				ip saddr %s oifname "kilo0" meta mark set 0x1000
			}
		}
	EOF`, from.Addr)))(t)
	seen, err := from.SeenBy(t.Context(), to)
	must(gateway.Shell(t.Context(), "nft delete table ip control"))(t)
	if err != nil || seen == from.Addr {
		t.Errorf("%s sees %s as %s although Flannel had its way: sourcesAreTrue proves nothing (%v)", to.Name, from.Name, seen, err)
	}
	t.Logf("as Flannel would have it, %s sees %s as %s", to.Name, from.Name, seen)
}

// A ClusterIP whose one backend is in another location: on a member, on a
// gateway, behind NAT; a pod, or a process with the node's own address. Hosts
// choose their source before the address is translated (a1's default route is
// its public leg), and are seen as their InternalIP all the same.
func servicesAcross(t *testing.T, l *lab.Lab) {
	for _, backend := range []*lab.Pod{l.Pod("b2"), l.Pod("b1"), l.Pod("c2")} {
		name := "before-" + backend.Name
		seenAsThemselves(t, l, &backend.Place, must(l.Expose(t.Context(), name, backend))(t))
		must(l.Kubectl(t.Context(), "delete", "service", "--namespace="+backend.Namespace, name))(t)
	}
	for _, name := range []string{"b2", "b1", "c2"} {
		node := l.Machine(name)
		ok(t, node.StartEcho(t.Context()))
		name := "before-node-" + name
		seenAsThemselves(t, l, &node.Place, must(l.ExposeAddress(t.Context(), name, netip.AddrPortFrom(node.Addr, lab.EchoPort)))(t))
		must(l.Kubectl(t.Context(), "delete", "service/"+name, "endpointslice/"+name))(t)
	}
}

// seenAsThemselves has everybody elsewhere call the service of a backend.
func seenAsThemselves(t *testing.T, l *lab.Lab, backend *lab.Place, service netip.AddrPort) {
	t.Helper()
	for _, from := range callersOf(l, backend) {
		eventually(t, soon, func() error { // kube-proxy learns of it
			seen, err := from.SeenAt(t.Context(), service)
			if err == nil && seen != from.Addr {
				err = fmt.Errorf("seen as %s, want %s", seen, from.Addr)
			}
			if err != nil {
				return fmt.Errorf("%s to the service of %s: %w", from.Name, backend.Name, err)
			}
			return nil
		})
	}
}

// What fails without the mesh (serviceOfAPIServerNeedsTheMesh) works.
func apiServerAsService(t *testing.T, l *lab.Lab) {
	service := netip.MustParseAddrPort("10.96.0.1:443")
	for _, p := range append(l.PodPlaces(), l.NodePlaces()...) {
		_, err := p.Exec(t.Context(), "/usr/bin/curl", "--silent", "--insecure", "--max-time", "3", "https://"+service.String()+"/version")
		if err != nil {
			t.Errorf("%s does not reach %s: %v", p.Name, service, err)
		}
	}
}
