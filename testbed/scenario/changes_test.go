package scenario

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// TestChanges changes what nodes say about themselves while all runs, one thing
// after the other: the mesh follows, and of what was nobody knows any more. Two
// of the locations are a node with a public address and nothing else, as rented
// servers are, and rp_filter is strict.
func TestChanges(t *testing.T) {
	spec := lab.Spec{
		RoutedInternet: true,
		Locations: []lab.Location{
			{Name: "a", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Nodes: []lab.Node{
				{Name: "a1", Public: true, Pods: 1},
				{Name: "a3", Pods: 1},
			}},
			{Name: "b", Subnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}, Nodes: []lab.Node{
				{Name: "b1", Public: true, Pods: 1, Annotations: map[string]string{"kilo.squat.ai/force-endpoint": "b1.example.net:51820"}},
				{Name: "b2", Pods: 1},
				{Name: "printer", Outsider: true},
			}},
			{Name: "cloud", Nodes: []lab.Node{{Name: "v1", Pods: 1}}},
			{Name: "edge", Nodes: []lab.Node{{Name: "v2", Pods: 1}}},
			{Name: "cp", Subnets: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}, Nodes: []lab.Node{{Name: "cp", Public: true, ControlPlane: true}}},
		},
	}
	l := upWith(t, lab.Options{Name: labName(t), HoldAgents: true}, spec)
	nameIs(t, l, "b1.example.net", l.Machine("b1").Public)
	outside := begunOutside(t, l)
	ok(t, l.StartAgents(t.Context()))
	t.Logf("whole after %s", whole(t, l, soon).Round(10*time.Millisecond))
	t.Run("a connection that began outside the tunnel", func(t *testing.T) { isReset(t, outside) })
	for _, s := range []struct {
		name string
		run  func(*testing.T, *lab.Lab)
	}{
		{"nodes with a public address and nothing else", publicOnly},
		{"a name without address", nameWithoutAddress},
		{"a public address changes", publicAddressChanges},
		{"an internal address changes", internalAddressChanges},
		{"a location changes", locationChanges},
		{"a key changes", keyChanges},
		{"hosts that are no nodes", allowedLocationIPs},
		{"two nodes claim one thing", twoClaimOneThing},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// begunOutside lets a1 speak to v1 before there is a mesh, at the address that will
// ride the tunnel, and from a1's public address, which the other end of the tunnel
// takes from nobody. Until there is a tunnel v1 is unreachable, and TCP tries again
// after pauses that grow; here to a second at most, so that more is ours.
func begunOutside(t *testing.T, l *lab.Lab) *conversation {
	v1 := l.Machine("v1")
	ok(t, v1.StartEcho(t.Context()))
	must(l.Machine("a1").Shell(t.Context(), "echo 1000 >/proc/sys/net/ipv4/tcp_rto_max_ms"))(t)
	c := converse(t, "a1 → v1", &l.Machine("a1").Place, netip.AddrPortFrom(v1.Public, lab.EchoPort))
	time.Sleep(time.Second)
	return c
}

// isReset wants the conversation, which finds itself in the tunnel now, to be ended
// by a reset when it next tries to speak, and not by anybody's patience.
func isReset(t *testing.T, c *conversation) {
	select {
	case <-c.done:
	case <-time.After(2 * time.Second):
	}
	c.judge(t, false)
	if c.answers < 5 {
		t.Errorf("%d answers before the mesh: nothing was tried", c.answers)
	}
}

// nameIs lets a name have an address, on all nodes.
func nameIs(t *testing.T, l *lab.Lab, name string, addr netip.Addr) {
	t.Helper()
	for _, n := range l.Nodes() {
		must(n.Shell(t.Context(), fmt.Sprintf(`sed /%s/d /etc/hosts >/etc/hosts.new; echo %s %s >>/etc/hosts.new; mv /etc/hosts.new /etc/hosts`, name, addr, name)))(t)
	}
}

// They are reached through the tunnel like any other, and reach the API server
// where everybody does, at its node's public address, outside of the tunnel.
func publicOnly(t *testing.T, l *lab.Lab) {
	reachAll(t, l, 30, 42)
	sourcesAreTrue(t, l)
	for _, name := range []string{"v1", "v2"} {
		n := l.Machine(name)
		if got := strings.TrimSpace(must(n.Shell(t.Context(), "sysctl -n net.ipv4.conf.eth0.rp_filter"))(t)); got != "1" {
			t.Errorf("%s: rp_filter %s, want strict", name, got)
		}
		if got := annotation(t, l, name, "kilo.squat.ai/internal-ip"); got != n.Public.String()+"/32" {
			t.Errorf("%s publishes internal-ip %q, want its public address, %s", name, got, n.Public)
		}
		way := must(l.Machine("a1").Exec(t.Context(), "/usr/sbin/ip", "route", "get", n.Public.String()))(t)
		if !strings.Contains(way, " dev kilo0 ") {
			t.Errorf("a1 reaches %s by %s", name, way)
		}
		server := fmt.Sprintf("https://%s:6443/version", l.Machine("cp").Public)
		if _, err := n.Exec(t.Context(), "/usr/bin/curl", "--silent", "--insecure", "--max-time", "3", server); err != nil {
			t.Errorf("%s does not reach %s: %v", name, server, err)
		}
	}
}

// A forced endpoint that does not resolve hurts nobody, and is told of.
func nameWithoutAddress(t *testing.T, l *lab.Lab) {
	b1 := annotation(t, l, "b1", "kilo.squat.ai/key")
	if got, want := wg(t, l, "a1", "endpoints")[b1], l.Machine("b1").Public.String()+":51820"; got != want {
		t.Errorf("b1 is reached at %s, want the address of its name, %s", got, want)
	}
	nowhere := "nowhere.invalid:51820"
	ok(t, l.Annotate(t.Context(), "v2", map[string]*string{"kilo.squat.ai/force-endpoint": &nowhere}))
	eventually(t, soon, warned(t, l, "", "node/v2", "nowhere.invalid"))
	whole(t, l, soon)
	ok(t, l.Annotate(t.Context(), "v2", map[string]*string{"kilo.squat.ai/force-endpoint": nil}))
	eventually(t, soon, unwarned(t, l, "", "node/v2", "nowhere.invalid"))
	whole(t, l, soon)
}

// A gateway's public address changes, as at home every night, and with it what
// it publishes, or what its name means. The other side alone has something to say.
func publicAddressChanges(t *testing.T, l *lab.Lab) {
	for _, c := range []struct{ node, pods, name string }{{"a1", "b2 a3", ""}, {"v1", "a3 v1", ""}, {"b1", "v2 b2", "b1.example.net"}} {
		before := l.Machine(c.node).Public
		after := netip.AddrFrom4([4]byte{198, 51, 100, before.As4()[3] + 100})
		stream := startStreams(t, l, c.pods)[0]
		time.Sleep(500 * time.Millisecond)
		changed := time.Now()
		published := after.String()
		if c.name != "" {
			published = c.name
			nameIs(t, l, c.name, after)
		}
		must(l.Renumber(t.Context(), c.node, netip.Addr{}, after))(t)
		eventually(t, soon, func() error {
			if got := annotation(t, l, c.node, "kilo.squat.ai/endpoint"); got != published+":51820" {
				return fmt.Errorf("%s publishes endpoint %s, want %s", c.node, got, published)
			}
			return stream.from.Ping(t.Context(), stream.to.Addr)
		})
		t.Logf("%s has %s instead of %s: published, and reached, within %s", c.node, after, before, time.Since(changed).Round(10*time.Millisecond))
		stats := must(stream.run.Stop(t.Context()))(t)
		t.Logf("%s: %s", stream.name, stats)
		if stats.LongestGap > 2*time.Second {
			t.Errorf("%s: %s", stream.name, stats)
		}
		whole(t, l, soon)
		reachAll(t, l, 30, 42)
		for node, endpoints := range endpointsOf(t, l) {
			if strings.Contains(endpoints, before.String()+":") {
				t.Errorf("%s still has somebody at %s:\n%s", node, before, endpoints)
			}
		}
	}
}

// endpointsOf is what every device says of where its peers are.
func endpointsOf(t *testing.T, l *lab.Lab) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, n := range l.Agents() {
		all[n.Name] = must(n.Exec(t.Context(), "/usr/bin/wg", "show", "kilo0", "endpoints"))(t)
	}
	return all
}

// A member's and a gateway's address on their LAN changes.
func internalAddressChanges(t *testing.T, l *lab.Lab) {
	for _, name := range []string{"a3", "b1"} {
		before := l.Machine(name).Addr
		after := netip.AddrFrom4([4]byte{10, before.As4()[1], 0, before.As4()[3] + 100})
		changed := time.Now()
		must(l.Renumber(t.Context(), name, after, netip.Addr{}))(t)
		eventually(t, soon, nobodyKnows(t, l, before.String()))
		whole(t, l, soon)
		t.Logf("%s has %s instead of %s: whole after %s", name, after, before, time.Since(changed).Round(10*time.Millisecond))
		if knowing := whoKnows(t, l, after.String()); len(knowing) < len(l.Agents())-1 {
			t.Errorf("of %s only %q know", after, knowing)
		}
		reachAll(t, l, 30, 42)
	}
}

// nobodyKnows is a check for eventually.
func nobodyKnows(t *testing.T, l *lab.Lab, what string) func() error {
	return func() error {
		if knowing := whoKnows(t, l, what); len(knowing) > 0 {
			return fmt.Errorf("of %s still %q know", what, knowing)
		}
		return nil
	}
}

// A node moves to another location, where it is a member, and back.
func locationChanges(t *testing.T, l *lab.Lab) {
	v1, v2 := annotation(t, l, "v1", "kilo.squat.ai/key"), annotation(t, l, "v2", "kilo.squat.ai/key")
	prefix := pod(l, "v1").Masked().String()
	over := func(node string) (peers []string) {
		for key, prefixes := range wg(t, l, node, "allowed-ips") {
			if slices.Contains(strings.Fields(prefixes), prefix) {
				peers = append(peers, key)
			}
		}
		return peers
	}
	edge := "edge"
	for _, c := range []struct {
		location *string
		peer     string
	}{{&edge, v2}, {nil, v1}} {
		ok(t, l.Annotate(t.Context(), "v1", map[string]*string{"kilo.squat.ai/location": c.location}))
		began := time.Now()
		eventually(t, soon, func() error {
			for _, gateway := range []string{"a1", "b1", "cp"} {
				if got := over(gateway); len(got) != 1 || got[0] != c.peer {
					return fmt.Errorf("%s has %s at %q, want %q", gateway, prefix, got, c.peer)
				}
				if _, there := wg(t, l, gateway, "allowed-ips")[v1]; there != (c.peer == v1) {
					return fmt.Errorf("%s has v1 as a peer: %t", gateway, there)
				}
				if g := must(l.Machine(gateway).AgentStatus(t.Context()))(t).Gateway("cloud"); (g == "v1") != (c.peer == v1) {
					return fmt.Errorf("%s: %q is gateway of location cloud", gateway, g)
				}
			}
			return nil
		})
		t.Logf("v1 moved after %s, whole %s later", time.Since(began).Round(10*time.Millisecond), whole(t, l, soon).Round(10*time.Millisecond))
		reachAll(t, l, 30, 42)
	}
}

// A node's key is another after a restart: nobody has the old one.
func keyChanges(t *testing.T, l *lab.Lab) {
	for _, name := range []string{"a1", "a3"} {
		m := l.Machine(name)
		before := annotation(t, l, name, "kilo.squat.ai/key")
		ok(t, m.StopAgent(t.Context()))
		must(m.Shell(t.Context(), "rm /var/lib/kilo/key"))(t)
		ok(t, m.StartAgent(t.Context()))
		began := time.Now()
		eventually(t, soon, func() error {
			after := annotation(t, l, name, "kilo.squat.ai/key")
			if after == before {
				return fmt.Errorf("%s publishes its old key", name)
			}
			for _, n := range l.Agents() {
				peers := wg(t, l, n.Name, "allowed-ips")
				if _, there := peers[before]; there {
					return fmt.Errorf("%s still has the old key of %s", n.Name, name)
				}
				if _, there := peers[after]; !there && name == "a1" && slices.Contains([]string{"b1", "v1", "v2", "cp"}, n.Name) {
					return fmt.Errorf("%s has not the new key of %s", n.Name, name)
				}
			}
			return nil
		})
		t.Logf("%s has another key: known after %s, whole %s later", name, time.Since(began).Round(10*time.Millisecond), whole(t, l, soon).Round(10*time.Millisecond))
	}
}

// A printer in b's LAN, which knows nobody beyond, is reached from elsewhere
// when b's gateway says so, as though the gateway itself spoke. What b's own
// nodes and pods send there is as before.
func allowedLocationIPs(t *testing.T, l *lab.Lab) {
	printer := l.Machine("printer")
	own := []*lab.Place{&l.Machine("b1").Place, &l.Machine("b2").Place, &l.Pod("b1").Place, &l.Pod("b2").Place}
	others := []*lab.Place{&l.Pod("a1").Place, &l.Pod("a3").Place, &l.Pod("v1").Place, &l.Machine("a3").Place, &l.Machine("cp").Place}
	before := seenAs(t, own, printer)
	for _, p := range others {
		if p.Ping(t.Context(), printer.Addr) == nil {
			t.Fatalf("%s reaches the printer already", p.Name)
		}
	}

	prefix := printer.Addr.String() + "/32"
	ok(t, l.Annotate(t.Context(), "b1", map[string]*string{"kilo.squat.ai/allowed-location-ips": &prefix}))
	eventually(t, soon, func() error { return l.Pod("a3").Ping(t.Context(), printer.Addr) })
	for who, source := range seenAs(t, others, printer) {
		if source != l.Machine("b1").Addr.String() {
			t.Errorf("the printer sees %s as %s, want b's gateway, %s", who, source, l.Machine("b1").Addr)
		}
	}
	for who, source := range seenAs(t, own, printer) {
		if source != before[who] {
			t.Errorf("the printer sees %s as %s, and saw %s", who, source, before[who])
		}
	}

	// Another location announces the same: all agree on one, and tell of it.
	ok(t, l.Annotate(t.Context(), "v1", map[string]*string{"kilo.squat.ai/allowed-location-ips": &prefix}))
	winner, loser := "b1", "v1"
	if node(t, l, "v1").UID < node(t, l, "b1").UID {
		winner, loser = loser, winner
	}
	eventually(t, soon, warned(t, l, "PrefixConflict", "node/"+loser, prefix))
	key := annotation(t, l, winner, "kilo.squat.ai/key")
	for _, gateway := range []string{"a1", "v2", "cp"} {
		for peer, prefixes := range wg(t, l, gateway, "allowed-ips") {
			if has := slices.Contains(strings.Fields(prefixes), prefix); has != (peer == key) {
				t.Errorf("%s: peer %s has %s: %t; %s is %s", gateway, peer, prefix, has, winner, key)
			}
		}
	}
	for _, name := range []string{"v1", "b1"} {
		ok(t, l.Annotate(t.Context(), name, map[string]*string{"kilo.squat.ai/allowed-location-ips": nil}))
	}
	eventually(t, soon, nobodyKnows(t, l, printer.Addr.String()))
	eventually(t, soon, unwarned(t, l, "PrefixConflict", "node/"+loser, prefix))
	whole(t, l, soon)
}

// seenAs is the source that a machine sees of each that pings it.
func seenAs(t *testing.T, from []*lab.Place, to *lab.Machine) map[string]string {
	t.Helper()
	seen := map[string]string{}
	for _, p := range from {
		packets := must(to.Capture(t.Context(), "eth0", "icmp[icmptype] == icmp-echo"))(t)
		ok(t, p.Ping(t.Context(), to.Addr))
		for _, packet := range must(packets.Stop(t.Context()))(t) {
			_, rest, _ := strings.Cut(packet, "IP ")
			seen[p.Name], _, _ = strings.Cut(rest, " > ")
		}
	}
	return seen
}

// Two nodes claim one internal address, one pod prefix, one key: who had it keeps
// it, and loses nothing; the other keeps what else it has, takes its claim back
// and says so. An agent that starts only now finds the same.
func twoClaimOneThing(t *testing.T, l *lab.Lab) {
	a3, v2 := l.Machine("a3"), l.Machine("v2")
	first := []*lab.Place{&l.Pod("a3").Place, &a3.Place}
	all := append(l.PodPlaces(), l.NodePlaces()...)
	stillReached := func(what string, from []*lab.Place, to ...*lab.Place) {
		t.Helper()
		eventually(t, soon, func() error {
			m, err := lab.Reach(t.Context(), from, to)
			if err == nil && !m.OK() {
				err = fmt.Errorf("%s:\n%s", what, m)
			}
			return err
		})
	}
	says := func(kind, what string) func() error {
		return func() error {
			if err := warns(t, v2, kind, what)(); err != nil {
				return err
			}
			for _, n := range l.Agents() {
				if n.Name != "v2" {
					if err := warns(t, n, kind, what)(); err == nil {
						return fmt.Errorf("%s still has to decide: %s", n.Name, kind)
					}
				}
			}
			return nil
		}
	}
	// b1 remembers nothing of who was first.
	forgetful := func() {
		t.Helper()
		b1 := l.Machine("b1")
		ok(t, b1.StopAgent(t.Context()))
		must(b1.Shell(t.Context(), "rm /var/lib/kilo/snapshot.json"))(t)
		ok(t, b1.StartAgent(t.Context()))
		ok(t, b1.WaitForAgent(t.Context(), 30*time.Second))
		eventually(t, soon, func() error { return l.Pod("b2").Ping(t.Context(), l.Pod("a3").Addr) })
	}

	addr := a3.Addr.String() + "/24"
	ok(t, l.Annotate(t.Context(), "v2", map[string]*string{"kilo.squat.ai/force-internal-ip": &addr}))
	eventually(t, soon, says("DuplicateInternalIP", a3.Addr.String()))
	forgetful()
	stillReached("v2 claims a3's internal address", all, append(first, &l.Pod("v2").Place)...)
	ok(t, l.Annotate(t.Context(), "v2", map[string]*string{"kilo.squat.ai/force-internal-ip": nil}))
	whole(t, l, soon)

	must(v2.Shell(t.Context(), fmt.Sprintf("cp /run/flannel/subnet.env /run/subnet.env; sed -i 's|^FLANNEL_SUBNET=.*|FLANNEL_SUBNET=%s|' /run/flannel/subnet.env", netip.PrefixFrom(pod(l, "a3").Masked().Addr().Next(), 24))))(t)
	eventually(t, soon, says("OverlappingPodPrefix", pod(l, "a3").Masked().String()))
	forgetful()
	stillReached("v2 claims a3's pods", all, append(first, &v2.Place)...)
	must(v2.Shell(t.Context(), "mv /run/subnet.env /run/flannel/subnet.env"))(t)
	whole(t, l, soon)

	// v2 is started with a copy of the key of a1, a gateway. (Its device is new; one
	// that has peers is in the tests of core/agent.)
	key, own := must(l.Machine("a1").Shell(t.Context(), "cat /var/lib/kilo/key"))(t), must(v2.Shell(t.Context(), "cat /var/lib/kilo/key"))(t)
	start := func(key string) {
		t.Helper()
		ok(t, v2.StopAgent(t.Context()))
		must(v2.Shell(t.Context(), "printf %s '"+key+"' >/var/lib/kilo/key"))(t)
		ok(t, v2.StartAgent(t.Context()))
	}
	streams := startStreams(t, l, "a3 b2", "b2 a3", "node/a1 node/v1")
	start(key)
	eventually(t, soon, says("DuplicateKey", "node a1"))
	time.Sleep(5 * time.Second)
	for _, s := range streams {
		if stats := must(s.run.Stop(t.Context()))(t); stats.Lost() > 0 {
			t.Errorf("v2 has the key of a1; %s: %s", s.name, stats)
		}
	}
	if got := annotation(t, l, "v2", "kilo.squat.ai/key"); got != "" {
		t.Errorf("v2 publishes the key %s", got)
	}
	others := slices.DeleteFunc(slices.Clone(all), func(p *lab.Place) bool { return p.Name == v2.Name || p.Name == l.Pod("v2").Name })
	stillReached("v2 has the key of a1", others, first...)
	start(own)

	whole(t, l, soon)
	for _, kind := range []string{"DuplicateInternalIP", "OverlappingPodPrefix", "DuplicateKey"} {
		eventually(t, soon, unwarned(t, l, kind, "node/v2", ""))
	}
	reachAll(t, l, 30, 42)
}

// warned is a check for eventually: every agent has a warning of that kind ("":
// any) about an object that says something. unwarned: no agent has.
func warned(t *testing.T, l *lab.Lab, kind, object, says string) func() error {
	return func() error { return eachWarns(t, l, true, kind, object, says) }
}

func unwarned(t *testing.T, l *lab.Lab, kind, object, says string) func() error {
	return func() error { return eachWarns(t, l, false, kind, object, says) }
}

func eachWarns(t *testing.T, l *lab.Lab, want bool, kind, object, says string) error {
	for _, n := range l.Agents() {
		s, err := n.AgentStatus(t.Context())
		if err != nil {
			return err
		}
		if warns := slices.ContainsFunc(s.Warnings, func(raw json.RawMessage) bool {
			var w struct{ Kind, Object, Message string }
			return json.Unmarshal(raw, &w) == nil && (kind == "" || w.Kind == kind) && w.Object == object && strings.Contains(w.Message, says)
		}); warns != want {
			return fmt.Errorf("%s warns of %s (%s …%s…): %t; it has %s", n.Name, object, kind, says, warns, s.Warnings)
		}
	}
	return nil
}
