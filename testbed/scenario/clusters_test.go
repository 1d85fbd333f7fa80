package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// twoClusters are production and its recovery site, each with an API server of its
// own, on two internets that a cable joins. Both have a location with a gateway and
// a member, and one with the control plane.
func twoClusters(t *testing.T) (prod, dr *lab.Lab) {
	two := func(name, net string, n int) lab.Location {
		var nodes []lab.Node
		for i := range n {
			nodes = append(nodes, lab.Node{Name: fmt.Sprintf("%s%d", name, i+1), Public: true, Pods: 1})
		}
		return lab.Location{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(net)}, Nodes: nodes}
	}
	first := lab.Spec{Locations: []lab.Location{two("a", "10.1.0.0/24", 2), two("cp", "10.9.0.0/24", 1)}}
	first.Locations[1].Nodes[0].Name, first.Locations[1].Nodes[0].ControlPlane = "cp", true
	second := lab.Spec{
		Locations:  []lab.Location{two("x", "172.16.1.0/24", 2), two("dp", "172.16.9.0/24", 1)},
		PodNetwork: netip.MustParsePrefix("10.11.0.0/16"), ServiceNetwork: netip.MustParsePrefix("10.21.0.0/16"),
		Internet:   netip.MustParsePrefix("203.0.113.0/24"),
		AgentFlags: []string{"--subnet=10.14.0.0/16"},
	}
	second.Locations[1].Nodes[0].ControlPlane = true
	prod, dr = upNamed(t, labName(t)+"-a", first), upNamed(t, labName(t)+"-b", second)
	ok(t, lab.Connect(t.Context(), prod, dr))
	whole(t, prod, soon)
	whole(t, dr, soon)
	return prod, dr
}

// Two clusters become one network: by hand, as it is printed about Kilo, with
// Services that lead to the other cluster; and then by kgctl cluster link.
func TestTwoClusters(t *testing.T) {
	onRequest(t)
	prod, dr := twoClusters(t)
	t.Run("recovery site by hand", func(t *testing.T) { recoverySite(t, prod, dr) })
	t.Run("linked", func(t *testing.T) { linkedClusters(t, prod, dr) })
}

// across demands that pods of each cluster reach pods of the other, at their own
// addresses and seen by their own.
func across(t *testing.T, from, to []*lab.Pod) {
	t.Helper()
	for _, p := range from {
		for _, q := range to {
			eventually(t, soon, func() error {
				seen, err := p.SeenBy(t.Context(), q)
				if err == nil && seen != p.Addr {
					err = fmt.Errorf("it sees %s", seen)
				}
				if err != nil {
					return fmt.Errorf("%s at %s to %s at %s: %w", p.Name, p.Addr, q.Name, q.Addr, err)
				}
				return nil
			})
		}
	}
}

// served asks an address for the name of the pod behind it.
func served(t *testing.T, from *lab.Pod, at netip.AddrPort, want string) {
	t.Helper()
	eventually(t, soon, func() error {
		name, err := from.Get(t.Context(), fmt.Sprintf("http://%s/name", at))
		if err == nil && strings.TrimSpace(name) != want {
			err = fmt.Errorf("%q answers, want %s", name, want)
		}
		if err != nil {
			return fmt.Errorf("%s to %s: %w", from.Name, at, err)
		}
		return nil
	})
}

// The recovery site is a Peer of production, at a name; production is a Peer of the
// recovery site, as kgctl prints it. A Service of production has a pod there behind
// it, through kube-proxy, and Services there are reached by their addresses.
func recoverySite(t *testing.T, prod, dr *lab.Lab) {
	for _, n := range prod.Agents() {
		must(n.Shell(t.Context(), fmt.Sprintf("echo %s dr-gateway.example.com >>/etc/hosts", dr.Machine("x1").Public)))(t)
	}
	apply(t, prod, fmt.Sprintf(`
apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata:
  name: cluster-dr-ovhcloud
spec:
  allowedIPs:
    - 10.11.0.0/16    # Pod CIDR du cluster DR
    - 10.21.0.0/16    # Service CIDR du cluster DR
  publicKey: %s
  endpoint: dr-gateway.example.com:51820
  persistentKeepalive: 25
`, annotation(t, dr, "x1", "kilo.squat.ai/key")))
	apply(t, dr, kgctl(t, prod)("showconf", "node", "a1", "--as-peer", "-o", "yaml", "--allowed-ips", "10.96.0.0/12"))

	mine, theirs := []*lab.Pod{prod.Pod("a1"), prod.Pod("a2")}, []*lab.Pod{dr.Pod("x1"), dr.Pod("x2")}
	across(t, mine, theirs)
	across(t, theirs, mine)

	there := must(dr.Expose(t.Context(), "standby", dr.Pod("x2")))(t)
	here := must(prod.Expose(t.Context(), "primary", prod.Pod("a2")))(t)
	served(t, prod.Pod("a2"), there, dr.Pod("x2").Name)
	served(t, dr.Pod("x2"), here, prod.Pod("a2").Name)

	apply(t, prod, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata:
  name: ml-inference-svc
spec:
  ports:
    - port: 8080
---
apiVersion: v1
kind: Endpoints
metadata:
  name: ml-inference-svc
subsets:
  - addresses:
      - ip: %[1]s   # Pod IP sur cluster GPU
    ports:
      - port: 8080
---
apiVersion: v1
kind: Service
metadata: {name: ml-slices}
spec: {ports: [{port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ml-slices, labels: {kubernetes.io/service-name: ml-slices}}
addressType: IPv4
endpoints: [{addresses: [%[1]q]}]
ports: [{port: 8080}]
`, dr.Pod("x2").Addr))
	for _, service := range []string{"ml-inference-svc", "ml-slices"} {
		address := netip.MustParseAddr(must(prod.Kubectl(t.Context(), "get", "service", service, "--output=jsonpath={.spec.clusterIP}"))(t))
		for _, pod := range mine {
			served(t, pod, netip.AddrPortFrom(address, 8080), dr.Pod("x2").Name)
		}
	}

	must(prod.Kubectl(t.Context(), "delete", "peer", "cluster-dr-ovhcloud"))(t)
	must(dr.Kubectl(t.Context(), "delete", "peer", "--all"))(t)
	apart(t, prod, dr)
}

// apart demands that no pod of one cluster reaches one of the other.
func apart(t *testing.T, prod, dr *lab.Lab) {
	t.Helper()
	eventually(t, soon, func() error {
		m, err := lab.Reach(t.Context(), prod.PodPlaces(), dr.PodPlaces())
		if err == nil && m.Passed() > 0 {
			err = fmt.Errorf("pods still reach the other cluster:\n%s", m)
		}
		return err
	})
}

// One command joins all locations of both, in both directions. Run again it changes
// nothing, after a change of gateway it brings the Peer up to date, and unlink
// leaves none.
func linkedClusters(t *testing.T, prod, dr *lab.Lab) {
	kgctl := kgctl(t, prod)
	link := func(command string, more ...string) string {
		t.Helper()
		return kgctl(append([]string{"cluster", command, "--to-kubeconfig", dr.Kubeconfig("admin")}, more...)...)
	}
	names := []string{"--name=prod", "--to-name=dr", "--to-subnet=10.14.0.0/16"}
	all := func() {
		t.Helper()
		across(t, prod.Pods(), dr.Pods())
		across(t, dr.Pods(), prod.Pods())
	}
	told := link("link", names...)
	for _, want := range []string{"added   Peer dr-x: 203.0.113.", "added   Peer dr-dp: ", "added   Peer prod-a: 198.51.100.", "added   Peer prod-cp: ", "10.21.0.0/16", "10.96.0.0/12"} {
		if !strings.Contains(told, want) {
			t.Errorf("no %q in\n%s", want, told)
		}
	}
	all()
	if again := link("link", names...); strings.Count(again, "kept ") != 4 || strings.Contains(again, "changed") || strings.Contains(again, "added") {
		t.Errorf("run again:\n%s", again)
	}

	ok(t, dr.Annotate(t.Context(), "x2", map[string]*string{"kilo.squat.ai/leader": new(string)}))
	eventually(t, soon, gatewayIs(t.Context(), dr, "x", "x2"))
	if changed := link("link", names...); strings.Count(changed, "changed Peer dr-x: the gateway's key") != 1 || strings.Count(changed, "kept ") != 3 {
		t.Errorf("after a change of gateway:\n%s", changed)
	}
	all()
	for _, l := range []*lab.Lab{prod, dr} {
		must(l.Kubectl(t.Context(), "wait", "--for=condition=Accepted", "peer", "--all", "--timeout=30s"))(t)
	}

	if gone := link("unlink"); strings.Count(gone, "removed Peer ") != 4 {
		t.Errorf("unlink says\n%s", gone)
	}
	for _, l := range []*lab.Lab{prod, dr} {
		if left := must(l.Kubectl(t.Context(), "get", "peers", "--output=name"))(t); left != "" {
			t.Errorf("%s still has %s", l.Name, left)
		}
	}
	apart(t, prod, dr)
}
