package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// TestMesh runs one scenario after the other on one lab: the default one, and
// a laptop somewhere else. Each leaves the mesh whole behind it. One alone:
//
//	go test ./testbed/scenario -run 'TestMesh/laptop' -v
func TestMesh(t *testing.T) {
	spec := lab.Default()
	spec.Locations = append(spec.Locations, lab.Location{
		Name: "home", Subnets: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")},
		Nodes: []lab.Node{{Name: "laptop", Outsider: true}},
	}, lab.Location{
		Name: "d", Subnets: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/24")}, // for nodes that join
	})
	l := mesh(t, spec)
	for _, s := range []struct {
		name string
		run  func(*testing.T, *lab.Lab)
	}{
		{"everybody reaches everybody", everybodyReachesEverybody},
		{"sources are true", sourcesAreTrue},
		{"without our chain Flannel rewrites transit", flannelRewritesTransit},
		{"services with a backend elsewhere", servicesAcross},
		{"the API server as a service", apiServerAsService},
		{"packet sizes", packetSizes},
		{"pods' MTU", func(t *testing.T, l *lab.Lab) { podMTU(t, l, 1420) }},
		{"a location behind NAT", behindNAT},
		{"kgctl shows what is there", kgctlShowsWhatIsThere},
		{"kgctl shows the live mesh", kgctlShowsTheLiveMesh},
		{"laptop", laptopAsPeer},
		{"kgctl connect", kgctlConnect},
		{"drift is repaired", driftIsRepaired},
		{"Flannel restarted", flannelRestarted},
		{"the agent of a member", memberWithoutAgent},
		{"the agent of a gateway", gatewayWithoutAgent},
		{"encrypted or nothing", encryptedOrNothing},
		{"the API server is away", apiServerAway},
		{"the gateway changes", gatewayChanges},
		{"nodes join and leave", nodesJoinAndLeave},
		{"a pod prefix changes", podPrefixChanges},
		{"cross, from behind NAT", crossFromBehindNAT},
		{"a path that drops large packets", pathThatDropsLargePackets}, // the last: its path stays as it is
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// All of it with rp_filter strict on every interface, which is the lab's
// default and said here again.
func everybodyReachesEverybody(t *testing.T, l *lab.Lab) {
	for _, n := range l.Nodes() {
		filters := must(n.Shell(t.Context(), "cat /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/kilo0/rp_filter"))(t)
		if filters != "1\n1\n" {
			t.Errorf("%s: rp_filter of all and kilo0 are %q, want strict", n.Name, filters)
		}
	}
	reachAll(t, l, 42, 56)
}

// reachAll demands that every pod and every node reach every other, by the
// address that they have in the cluster. An API server's host is given time: it
// takes to the tunnel, address by address, only what it knows to answer there.
func reachAll(t *testing.T, l *lab.Lab, podPairs, nodePairs int) {
	t.Helper()
	pods, nodes := l.PodPlaces(), l.NodePlaces()
	for _, try := range []struct {
		what     string
		from, to []*lab.Place
		pairs    int
	}{
		{"pod to pod", pods, pods, podPairs},
		{"node to node", nodes, nodes, nodePairs},
		{"node to pod", nodes, pods, len(pods) * len(nodes)},
		{"pod to node", pods, nodes, len(pods) * len(nodes)},
	} {
		eventually(t, soon, func() error {
			m, err := lab.Reach(t.Context(), try.from, try.to)
			if err == nil && (!m.OK() || len(m.Pairs) != try.pairs) {
				err = fmt.Errorf("%s: want %d of %d\n%s", try.what, try.pairs, try.pairs, m)
			}
			return err
		})
	}
}

// An oversized packet is refused where it starts, with the size that would
// pass, and TCP fits from the start.
func packetSizes(t *testing.T, l *lab.Lab) {
	from, to := l.Pod("a3"), l.Pod("b2") // member to member: VXLAN, WireGuard, VXLAN
	size := func(ip int) string { return fmt.Sprint(ip - 20 - 8) }
	if _, err := from.Exec(t.Context(), "/usr/bin/ping", "-c1", "-W2", "-M", "do", "-s", size(1420), to.Addr.String()); err != nil {
		t.Errorf("1420 bytes, the MTU of the tunnel: %v", err)
	}
	out, err := from.Exec(t.Context(), "/usr/bin/ping", "-c1", "-W2", "-M", "do", "-s", size(1421), to.Addr.String())
	if err == nil || !strings.Contains(out, fmt.Sprintf("From %s ", gatewayOf(from))) || !strings.Contains(out, "mtu = 1420") {
		t.Errorf("1421 bytes: want them refused by the pod's own node: %v\n%s", err, out)
	}
	const n = 4 << 20
	body := must(from.Get(t.Context(), fmt.Sprintf("http://%s:%d/bytes?n=%d", to.Addr, lab.EchoPort, n)))(t)
	if len(body) != n {
		t.Errorf("%d bytes of %d arrived", len(body), n)
	}
}

// gatewayOf is the address of a pod's node on the pod's network.
func gatewayOf(p *lab.Pod) netip.Addr {
	return netip.PrefixFrom(p.Addr, 24).Masked().Addr().Next()
}

// Whoever is behind NAT speaks first and keeps the way open; where it was
// heard is published, so every public location knows where to answer.
func behindNAT(t *testing.T, l *lab.Lab) {
	const gateway = "c1" // of the location behind NAT
	key := annotation(t, l, gateway, "kilo.squat.ai/key")
	if got := annotation(t, l, gateway, "kilo.squat.ai/endpoint"); got != "" {
		t.Errorf("%s publishes an endpoint, %s", gateway, got)
	}
	for _, public := range []string{"a1", "b1", "cp"} {
		eventually(t, soon, func() error {
			got := annotation(t, l, public, "kilo.squat.ai/discovered-endpoints")
			if !strings.Contains(got, key) || !strings.Contains(got, l.Router("c").Addr.String()) {
				return fmt.Errorf("%s publishes %q; want %s at %s", public, got, key, l.Router("c").Addr)
			}
			return nil
		})
		if got := wg(t, l, public, "endpoints")[key]; !strings.HasPrefix(got, l.Router("c").Addr.String()+":") {
			t.Errorf("%s answers %s at %s, want its router's address", public, gateway, got)
		}
	}
	for key, seconds := range wg(t, l, gateway, "persistent-keepalive") {
		if seconds != "25" {
			t.Errorf("%s keeps the way to %s open every %s seconds, want 25", gateway, key, seconds)
		}
	}
	from := slices.Concat(l.PodPlaces(), l.NodePlaces())
	m := must(lab.Reach(t.Context(), from, []*lab.Place{&l.Machine("c1").Place, &l.Machine("c2").Place, &l.Pod("c1").Place, &l.Pod("c2").Place}))(t)
	if !m.OK() {
		t.Error(m)
	}
}

// What the mesh must do on the default lab it must do on others.
func TestMeshElsewhere(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*lab.Spec)
		best   int // MTU for pods; 0: not asked
		often  bool
	}{
		{"host-gw, rp_filter off", func(s *lab.Spec) { s.Flannel.Backend, s.RPFilter = "host-gw", lab.RPFilterOff }, 0, true},
		{"routed internet, nftables for all, MTU 1400", func(s *lab.Spec) {
			s.RoutedInternet, s.Flannel.NFTables, s.ProxyMode, s.MTU = true, true, lab.ProxyNFTables, 1400
		}, 1320, true},
		{"two subnets with direct routing, VNI 7, rp_filter loose, MTU 1400 in one location", func(s *lab.Spec) {
			s.Flannel.DirectRouting, s.Flannel.VNI, s.RPFilter = true, 7, lab.RPFilterLoose
			s.Locations[0].Subnets = append(slices.Clone(s.Locations[0].Subnets), netip.MustParsePrefix("10.1.1.0/24"))
			s.Locations[0].Nodes[2].Subnet = 1 // a3
			for i := range s.Locations[1].Nodes {
				s.Locations[1].Nodes[i].MTU = 1400
			}
		}, 1320, true},
		// What the default lab and the one above have the same of.
		{"Flannel with nftables, kube-proxy with iptables", func(s *lab.Spec) { s.Flannel.NFTables = true }, 0, false},
		{"Flannel with iptables, kube-proxy with nftables", func(s *lab.Spec) { s.ProxyMode = lab.ProxyNFTables }, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.often {
				onRequest(t)
			}
			spec := lab.Default()
			c.change(&spec)
			l := mesh(t, spec)
			reachAll(t, l, 42, 56)
			sourcesAreTrue(t, l)
			servicesAcross(t, l)
			if c.best > 0 {
				podMTU(t, l, c.best)
			}
		})
	}
}

// mesh brings up a lab and waits until its mesh is whole.
func mesh(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	l := up(t, spec)
	took := whole(t, l, soon)
	t.Logf("whole %.1f s after the agents' start", took.Seconds())
	return l
}

// whole waits until all agents are ready and every pod reaches every other. It
// returns how long that took.
func whole(t *testing.T, l *lab.Lab, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	if m, err := l.WaitForMesh(t.Context(), limit); err != nil {
		t.Fatalf("%v\n%s\n%s", err, l.MeshTable(t.Context()), m)
	}
	took := time.Since(began)
	if took > 10*time.Second {
		t.Logf("the mesh was whole again only after %s", took.Round(100*time.Millisecond))
	}
	return took
}
