package cilium_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/adapters/cilium"
	"github.com/kilo-overlay/kilo/core/adapter"
)

const onePrefix = `{"podCIDRs":["10.244.6.0/24"],"pools":{}}`

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func discover(t *testing.T, dir, ipam string, change func(*said)) (adapter.Facts, error) {
	t.Helper()
	o := newAPIServer(t, ciliumNode(ipam)).options(t)
	read(t, dir, change).serve(t, o.Socket)
	return cilium.New(o).Discover(t.Context())
}

var compare = cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

// What real agents said, in each mode.
func TestDiscover(t *testing.T) {
	setting := adapter.Setting{Where: `"MTU" in Cilium's Helm values ("mtu" in ConfigMap cilium-config)`}
	tunnelSetting := setting
	tunnelSetting.Add = 50
	common := adapter.Facts{CNI: "cilium", Unnumbered: true, TunnelMarks: []uint32{cilium.FromHost}, Device: "eth0", DeviceMTU: 1500, PodPrefixes: prefixes("10.244.6.0/24"),
		ExcludeInterfaces: []string{"cilium_*", "lxc*"}}
	native := common
	native.PodMTU, native.PodMTUSetting, native.ClusterPrefixes = 1500, setting, prefixes("10.244.0.0/16")

	for dir, want := range map[string]func(*adapter.Facts){
		"tunnel": func(f *adapter.Facts) {
			*f = common
			f.Mode = "tunnel vxlan, host routing legacy, masquerading by iptables"
			f.NodesOnly, f.PodMTU, f.PodOverhead, f.PodMTUSetting = true, 1450, 50, tunnelSetting
		},
		"native": func(f *adapter.Facts) {
			*f = native
			f.Mode = "native, host routing legacy, masquerading by iptables"
		},
		"native-bpf": func(f *adapter.Facts) {
			*f = native
			f.Mode = "native, host routing bpf, masquerading by bpf, kube-proxy replaced"
		},
	} {
		t.Run(dir, func(t *testing.T) {
			got, err := discover(t, dir, onePrefix, nil)
			if err != nil {
				t.Fatal(err)
			}
			var f adapter.Facts
			want(&f)
			if d := cmp.Diff(f, got, compare); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func bpfHostRouting(s *said) { s.part("routing")["intra-host-routing-mode"] = "BPF" }

// In tunnel mode what pods send to nodes has the pods' addresses where Cilium
// brings it past the kernel's firewall, so those have to cross as well; what pods
// send to pods is tunnelled all the same.
func TestDiscoverTunnelWithBPFHostRouting(t *testing.T) {
	legacy, err := discover(t, "tunnel", onePrefix, nil)
	if err != nil {
		t.Fatal(err)
	}
	bpf, err := discover(t, "tunnel", onePrefix, bpfHostRouting)
	if err != nil {
		t.Fatal(err)
	}
	want := legacy
	want.NodesOnly, want.Mode = false, "tunnel vxlan, host routing bpf, masquerading by iptables"
	if d := cmp.Diff(want, bpf, compare); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// The node's prefixes are its CiliumNode's, whoever gave them.
func TestDiscoverPodPrefixes(t *testing.T) {
	for name, c := range map[string]struct {
		ipam string
		want []netip.Prefix
	}{
		"cluster-pool with several": {`{"podCIDRs":["10.1.4.0/24","10.1.3.0/24"]}`, prefixes("10.1.3.0/24", "10.1.4.0/24")},
		"both families":             {`{"podCIDRs":["10.244.3.0/24","fd00:10:244:3::/64"]}`, prefixes("10.244.3.0/24", "fd00:10:244:3::/64")},
		"multi-pool": {`{"podCIDRs":[],"pools":{"requested":[{"pool":"default","needed":{"ipv4-addrs":16}}],
			"allocated":[{"pool":"mars","cidrs":["10.20.0.0/27"]},{"pool":"default","cidrs":["10.10.0.32/27","10.10.0.0/27"]}]}}`,
			prefixes("10.10.0.0/27", "10.10.0.32/27", "10.20.0.0/27")},
		"host bits": {`{"podCIDRs":["10.244.6.1/24"]}`, prefixes("10.244.6.0/24")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := discover(t, "native", c.ipam, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.PodPrefixes, c.want) {
				t.Errorf("got %v, want %v", got.PodPrefixes, c.want)
			}
			if len(got.Warnings) > 0 {
				t.Errorf("warnings: %v", got.Warnings)
			}
		})
	}
}

// What cannot be served is refused by name, with what to do.
func TestDiscoverUnsupported(t *testing.T) {
	ipam := func(mode string) func(*said) {
		return func(s *said) { s.config["status"].(map[string]any)["ipam-mode"] = mode }
	}
	for name, c := range map[string]struct {
		change func(*said)
		words  []string
	}{
		"ENI":              {ipam("eni"), []string{`"eni"`, "cluster-pool"}},
		"Azure":            {ipam("azure"), []string{`"azure"`, "cluster-pool"}},
		"Alibaba":          {ipam("alibabacloud"), []string{`"alibabacloud"`}},
		"delegated plugin": {ipam("delegated-plugin"), []string{`"delegated-plugin"`}},
		"chained": {func(s *said) { s.part("cni-chaining")["mode"] = "generic-veth" },
			[]string{"generic-veth", "--adapter=flannel"}},
		"older than the API": {func(s *said) {
			delete(s.health, "routing")
			s.part("cilium")["msg"] = "1.11.20 (v1.11.20-2f7a8c3e)"
		}, []string{"1.11.20", "1.16"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := discover(t, "tunnel", onePrefix, c.change)
			var u *adapter.Unsupported
			if !errors.As(err, &u) {
				t.Fatalf("got %v, want an *adapter.Unsupported", err)
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

// Each setting that is in the way is said, with what to do; those of a good
// agent are not.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		dir    string
		ipam   string
		change func(*said)
		subnet string
		kind   string
		words  []string
	}{
		"our link among the devices": {dir: "native", change: func(s *said) {
			s.part("kube-proxy-replacement")["devices"] = []any{"eth0", "kilo0"}
		}, kind: "CiliumDevices", words: []string{"kilo0", `"devices"`}},
		"our other link among the devices": {dir: "tunnel", change: func(s *said) {
			s.part("kube-proxy-replacement")["devices"] = []any{"eth0", "kilo-vxlan"}
		}, kind: "CiliumDevices", words: []string{"kilo-vxlan", `"devices"`}},
		"TC7: host firewall": {dir: "tunnel", change: func(s *said) { s.part("host-firewall")["mode"] = "Enabled" },
			kind: "CiliumHostFirewall", words: []string{"51820", "world", "remote-node", "8473"}},
		"nodes that cannot be reached directly": {dir: "native", change: func(s *said) { s.option("DirectRoutingSkipUnreachable", false) },
			kind: "CiliumDirectRouting", words: []string{"directRoutingSkipUnreachable"}},
		"BPF host routing in tunnel mode": {dir: "tunnel", change: bpfHostRouting},
		"BPF host routing in native mode": {dir: "native-bpf"},
		"encryption": {dir: "tunnel", change: func(s *said) { s.part("encryption")["mode"] = "Wireguard" },
			kind: "CiliumEncryption", words: []string{"Wireguard", "twice", "encryption.enabled"}},
		"pods in the WireGuard subnet": {dir: "native", ipam: `{"podCIDRs":["10.4.6.0/24"]}`, subnet: "10.4.0.0/16",
			kind: "OverlappingPrefixes", words: []string{"10.4.6.0/24", "10.4.0.0/16", "--subnet"}},
		"the node in its pods' prefix": {dir: "native", ipam: `{"podCIDRs":["10.1.0.0/24"]}`,
			kind: "OverlappingPrefixes", words: []string{"10.1.0.0/24", "10.1.0.11"}},
		"prefixes one in another": {dir: "native", ipam: `{"podCIDRs":["10.244.0.0/16","10.244.6.0/24"]}`,
			kind: "OverlappingPrefixes", words: []string{"10.244.0.0/16", "10.244.6.0/24"}},
		"no prefix": {dir: "native", ipam: `{"podCIDRs":["10.244.6.0/24","10.244.7"]}`,
			kind: "CiliumNode", words: []string{"10.244.7"}},
		"nothing wrong in tunnel mode": {dir: "tunnel"},
		"nothing wrong in native mode": {dir: "native"},
	} {
		t.Run(name, func(t *testing.T) {
			ipam := onePrefix
			if c.ipam != "" {
				ipam = c.ipam
			}
			o := newAPIServer(t, ciliumNode(ipam)).options(t)
			if c.subnet != "" {
				o.WireGuardSubnets = prefixes(c.subnet)
			}
			read(t, c.dir, c.change).serve(t, o.Socket)
			f, err := cilium.New(o).Discover(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.kind == "" {
				if len(f.Warnings) > 0 {
					t.Errorf("warnings: %v", f.Warnings)
				}
				return
			}
			if len(f.Warnings) != 1 || f.Warnings[0].Kind != c.kind || f.Warnings[0].Object != "node/e1" {
				t.Fatalf("got %v, want one %s about node/e1", f.Warnings, c.kind)
			}
			for _, w := range c.words {
				if !strings.Contains(f.Warnings[0].Message, w) {
					t.Errorf("%q does not say %q", f.Warnings[0].Message, w)
				}
			}
		})
	}
	// Nobody needs the option where Cilium makes no such routes.
	f, err := discover(t, "native", onePrefix, func(s *said) {
		s.option("DirectRoutingSkipUnreachable", false)
		s.option("EnableAutoDirectRouting", false)
	})
	if err != nil || len(f.Warnings) > 0 {
		t.Errorf("%v, warnings: %v", err, f.Warnings)
	}
}

// Nothing is known while the agent does not answer, and everything again when it
// does.
func TestDiscoverWhileCiliumRestarts(t *testing.T) {
	o := newAPIServer(t, ciliumNode(onePrefix)).options(t)
	a := cilium.New(o)
	if _, err := a.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), o.Socket) || !strings.Contains(err.Error(), "not up") {
		t.Errorf("before its start: %v", err)
	}
	stop := read(t, "tunnel", nil).serve(t, o.Socket)
	if _, err := a.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := a.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), o.Socket) {
		t.Errorf("while it is down: %v", err)
	}
	starting := read(t, "native", func(s *said) {
		for name := range s.health {
			delete(s.health, name)
		}
		s.health["cilium"] = map[string]any{"state": "Warning", "msg": "Not all probes executed at least once"}
	})
	stop = starting.serve(t, o.Socket)
	var unsupported *adapter.Unsupported
	if _, err := a.Discover(t.Context()); err == nil || errors.As(err, &unsupported) || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("while it starts: %v", err)
	}
	stop()
	read(t, "native", nil).serve(t, o.Socket)
	f, err := a.Discover(t.Context())
	if err != nil || f.NodesOnly {
		t.Errorf("started anew in another mode: %v, nodesOnly %t", err, f.NodesOnly)
	}
}

// Without an API server, what the node said before stands in for its CiliumNode,
// and what the agent itself knows for that.
func TestDiscoverWithoutAnAPIServer(t *testing.T) {
	api := newAPIServer(t, ciliumNode(onePrefix))
	api.fails(500)
	o := api.options(t)
	read(t, "native", nil).serve(t, o.Socket)
	f, err := cilium.New(o).Discover(t.Context())
	if want := prefixes("10.244.3.0/24"); err != nil || !slices.Equal(f.PodPrefixes, want) {
		t.Errorf("got %v, %v; want the agent's own %v", f.PodPrefixes, err, want)
	}
	o.Known = func() []netip.Prefix { return prefixes("10.1.3.0/24", "10.1.4.0/24") }
	f, err = cilium.New(o).Discover(t.Context())
	if want := o.Known(); err != nil || !slices.Equal(f.PodPrefixes, want) {
		t.Errorf("got %v, %v; want what was published before, %v", f.PodPrefixes, err, want)
	}
}

// An answer that says no is not the same as none.
func TestDiscoverCiliumNodeRefused(t *testing.T) {
	for name, c := range map[string]struct {
		node   string
		status int
		words  []string
	}{
		"not permitted":      {ciliumNode(onePrefix), 403, []string{"ClusterRole", "rbac.yaml"}},
		"not there":          {"", 0, []string{`"e1"`, "yet"}},
		"without any prefix": {ciliumNode(`{"podCIDRs":[]}`), 0, []string{"e1", "operator"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t, c.node)
			api.fails(c.status)
			o := api.options(t)
			o.Known = func() []netip.Prefix { return prefixes("10.1.3.0/24") }
			read(t, "native", nil).serve(t, o.Socket)
			_, err := cilium.New(o).Discover(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}
