package guest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/kilo-overlay/kilo/testbed/lab"
	"github.com/kilo-overlay/kilo/testbed/tools"
)

// The agent on two nodes with the kernel's WireGuard is restarted and killed,
// also while the API server is away, and the pods between them lose no packet.
//
// The API server is a lab's, on this machine: a guest would take minutes to
// start one. The nodes are machines of the lab as well, so that somebody keeps
// their Node objects ready, but what they run, they run in the guest.
func TestAgentUnderTraffic(t *testing.T) {
	need(t, Check())
	need(t, lab.Check())
	l := controlPlane(t)
	paths, err := tools.Ensure(t.Context(), os.Stderr, "flannel")
	if err != nil {
		t.Fatal(err)
	}

	g := &Guest{
		Programs: host(t, "sh", "ip", "nft", "cat", "mount", "hostname", "nsenter", "ping"),
		Commands: []Command{{Args: []string{"/usr/bin/twonodes", "/etc/twonodes.json"}}},
		Network:  true,
	}
	g.Programs["/usr/bin/kg"] = build(t, "program", "./cmd/kg")
	g.Programs["/usr/bin/twonodes"] = build(t, "program", "./testbed/guest/twonodes")
	g.Programs["/usr/bin/flanneld"] = paths[tools.Flanneld]
	// Flannel masquerades by nftables here, and looks by iptables whether an
	// earlier one did otherwise.
	for _, name := range []string{"iptables", "ip6tables"} {
		g.Programs["/usr/bin/"+name] = host(t, name+"-nft")["/usr/bin/"+name+"-nft"]
	}
	for _, plugin := range glob(t, "/usr/lib/*-linux-gnu/xtables/*.so") {
		g.Programs[plugin] = plugin
	}
	type nodeConfig struct {
		Name    string `json:"name"`
		Address string `json:"address"`
		Gateway string `json:"gateway"`
	}
	var nodes []nodeConfig
	for _, m := range l.Nodes() {
		if m.Name != "cp" {
			gateway := netip.AddrFrom4([4]byte{10, m.Addr.As4()[1], 0, 254})
			nodes = append(nodes, nodeConfig{m.Name, m.Addr.String(), gateway.String()})
		}
	}
	g.Files = map[string][]byte{
		"/etc/protocols":                  []byte("icmp 1\ntcp 6\nudp 17\nipv6-icmp 58\n"),
		"/etc/kilo/kubeconfig":            kubeconfig(t, l, "agent"),
		"/etc/kube-flannel/kubeconfig":    kubeconfig(t, l, "flannel"),
		"/etc/kube-flannel/net-conf.json": fmt.Appendf(nil, `{"Network": %q, "EnableNFTables": true, "Backend": {"Type": "vxlan"}}`, l.Spec.PodNetwork),
		"/etc/twonodes.json": mustJSON(map[string]any{
			"nodes": nodes, "api": l.Machine("cp").Public.String(),
			"podNetwork": l.Spec.PodNetwork.String(), "serviceNetwork": l.Spec.ServiceNetwork.String(),
		}),
	}
	// Where QEMU runs is what the guest reaches.
	for _, r := range boot(t, g, 8*time.Minute, l.Machine("cp").Exec) {
		if r.Code == 0 {
			t.Log("\n" + r.Output)
		}
	}
}

// controlPlane brings up a lab that is nothing but a control plane and two
// registered nodes in two locations.
func controlPlane(t *testing.T) *lab.Lab {
	t.Helper()
	node := func(name, address string) lab.Node {
		return lab.Node{Name: name, Annotations: map[string]string{"kilo.squat.ai/force-endpoint": address + ":51820"}}
	}
	location := func(name, subnet string, n lab.Node) lab.Location {
		return lab.Location{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, Nodes: []lab.Node{n}}
	}
	spec := lab.Spec{CNI: lab.CNINone, ProxyMode: lab.ProxyOff, NoAgent: true, Locations: []lab.Location{
		location("east", "10.1.0.0/24", node("g1", "10.1.0.1")),
		location("west", "10.2.0.0/24", node("g2", "10.2.0.1")),
		location("cp", "10.9.0.0/24", lab.Node{Name: "cp", ControlPlane: true, Public: true, PublicIP: netip.MustParseAddr("198.51.100.10")}),
	}}
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Name()), "-")
	name = fmt.Sprintf("%.20s-%d", name, os.Getpid())
	t.Cleanup(func() {
		// Not the test's context: that is over when this runs.
		if err := lab.Down(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), spec, lab.Options{Name: name, Progress: progress{t}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	return files
}

// progress is a Writer that logs to the test.
type progress struct{ t *testing.T }

func (p progress) Write(b []byte) (int, error) {
	p.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

// kubeconfig is a user's, with everything inside that it names.
func kubeconfig(t *testing.T, l *lab.Lab, user string) []byte {
	t.Helper()
	config, err := clientcmd.LoadFromFile(l.Kubeconfig(user))
	if err == nil {
		err = api.FlattenConfig(config)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
