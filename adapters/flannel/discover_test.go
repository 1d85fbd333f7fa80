package flannel

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
)

// a kernel as a value; the real one is in discover_linux_test.go.
type kernelValue struct {
	host model.Host
	main []adapter.NextHop
}

func (k kernelValue) Host(context.Context) (model.Host, error) { return k.host, nil }
func (k kernelValue) MainRoutes(context.Context) ([]adapter.NextHop, error) {
	return k.main, nil
}

func link(name, kind string, mtu int, addresses ...string) model.Interface {
	return model.Interface{Name: name, Kind: kind, MTU: mtu, Up: true, Addresses: prefixes(addresses...)}
}

func down(i model.Interface) model.Interface {
	i.Up = false
	return i
}

const (
	envV4   = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	envBoth = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\n" +
		"FLANNEL_IPV6_NETWORK=fd00:10::/32\nFLANNEL_IPV6_SUBNET=fd00:10:2::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"
)

func annotated(backend, data string) map[string]string {
	return map[string]string{
		"flannel.alpha.coreos.com/backend-data":        data,
		"flannel.alpha.coreos.com/backend-type":        backend,
		"flannel.alpha.coreos.com/kube-subnet-manager": "true",
		"flannel.alpha.coreos.com/public-ip":           "10.0.0.2",
	}
}

// discovery is what Discover finds on one node.
type discovery struct {
	name        string
	env         string            // subnet.env; "": not there
	age         time.Duration     // of subnet.env
	netConf     string            // net-conf.json; "": not there
	annotations map[string]string // nil: not known
	links       []model.Interface
	main        []string
	check       func(t *testing.T, f adapter.Facts)
	err         []string // parts of the error
	unsupported bool
}

func (d discovery) run(t *testing.T) {
	dir := t.TempDir()
	o := Options{
		Node:            "e2",
		NodeAnnotations: func() map[string]string { return maps.Clone(d.annotations) },
		SubnetFile:      filepath.Join(dir, "subnet.env"),
		NetConfFiles:    []string{filepath.Join(dir, "absent.json"), filepath.Join(dir, "net-conf.json")},
	}
	k := kernelValue{host: model.Host{Interfaces: d.links}}
	for _, text := range d.main {
		k.main = append(k.main, hop(t, text))
	}
	o.Kernel = k
	if d.env != "" {
		write(t, o.SubnetFile, d.env)
		then := time.Now().Add(-d.age)
		if err := os.Chtimes(o.SubnetFile, then, then); err != nil {
			t.Fatal(err)
		}
	}
	if d.netConf != "" {
		write(t, o.NetConfFiles[1], d.netConf)
	}
	f, err := New(o).Discover(t.Context())
	if d.err != nil {
		if err == nil {
			t.Fatalf("got %+v, want an error with %q", f, d.err)
		}
		for _, part := range d.err {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not say %q", err, part)
			}
		}
		var u *adapter.Unsupported
		if errors.As(err, &u) != d.unsupported {
			t.Errorf("error %q: unsupported for good is %t, want %t", err, !d.unsupported, d.unsupported)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	d.check(t, f)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, sameAddr, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestDiscover(t *testing.T) {
	eth0 := link("eth0", "", 1500, "10.0.0.2/24")
	cni0 := link("cni0", "bridge", 1450, "10.244.2.1/24")
	flannel1 := link("flannel.1", "vxlan", 1450, "10.244.2.0/32")
	flannel42 := link("flannel.42", "vxlan", 1400, "10.244.2.0/32")
	vxlanMain := []string{
		"0.0.0.0/0 via 10.0.0.254 dev eth0 mtu 1500",
		"10.0.0.0/24 dev eth0 mtu 1500",
		"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450",
		"10.244.2.0/24 dev cni0 mtu 1450",
		"10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink mtu 1450",
		"192.168.0.0/16 via 10.0.0.253 dev eth0 mtu 1500",
	}
	for _, d := range []discovery{
		{
			name: "vxlan", env: envV4, annotations: annotated("vxlan", `{"VNI":1,"VtepMAC":"3a:10:45:ad:ff:6e"}`),
			links: []model.Interface{eth0, cni0, flannel1}, main: vxlanMain,
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, adapter.Facts{
					CNI: "flannel", Mode: "vxlan",
					PodPrefixes:     prefixes("10.244.2.0/24"),
					ClusterPrefixes: prefixes("10.244.0.0/16"),
					Device:          "flannel.1", DeviceMTU: 1450, PodMTU: 1450,
					PodMTUSetting: adapter.Setting{Where: `"MTU" in the Backend of Flannel's net-conf.json`, Add: 50},
					NextHops: []adapter.NextHop{
						hop(t, "10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450"),
						hop(t, "10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink mtu 1450"),
					},
					ExcludeInterfaces: []string{"cni0", "flannel*"},
				}, f)
			},
		},
		{
			name: "TC4: VNI 42 beside the device of an earlier configuration", env: envV4,
			annotations: annotated("vxlan", `{"VNI":42,"VtepMAC":"3a:10:45:ad:ff:6e"}`),
			links:       []model.Interface{eth0, flannel1, flannel42},
			main:        []string{"10.244.1.0/24 via 10.244.1.0 dev flannel.42 onlink mtu 1400"},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, "flannel.42", f.Device)
				equal(t, 1400, f.DeviceMTU)
			},
		},
		{
			name: "TC4: host-gw", env: envV4, annotations: annotated("host-gw", "null"),
			links: []model.Interface{link("eth1", "", 9000, "198.51.100.2/24"), eth0, cni0},
			main: []string{
				"10.244.1.0/24 via 10.0.0.1 dev eth0 mtu 1500",
				"10.244.2.0/24 dev cni0 mtu 1500",
			},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, "host-gw", f.Mode)
				equal(t, "eth0", f.Device)
				equal(t, 1500, f.DeviceMTU)
				equal(t, []adapter.NextHop{hop(t, "10.244.1.0/24 via 10.0.0.1 dev eth0 mtu 1500")}, f.NextHops)
			},
		},
		{
			name: "host-gw on the first node: the device is the one with Flannel's address", env: envV4,
			annotations: annotated("host-gw", "null"),
			links:       []model.Interface{link("eth1", "", 9000, "198.51.100.2/24"), eth0},
			check:       func(t *testing.T, f adapter.Facts) { equal(t, "eth0", f.Device) },
		},
		{
			name: "vxlan with DirectRouting mixes both kinds of next hop", env: envV4,
			annotations: annotated("vxlan", `{"VNI":1,"VtepMAC":"3a:10:45:ad:ff:6e"}`),
			links:       []model.Interface{eth0, cni0, flannel1},
			main: []string{
				"10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink mtu 1450",
				"10.244.1.0/24 via 10.0.0.1 dev eth0 mtu 1500",
			},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, []adapter.NextHop{
					hop(t, "10.244.1.0/24 via 10.0.0.1 dev eth0 mtu 1500"),
					hop(t, "10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink mtu 1450"),
				}, f.NextHops)
				equal(t, "flannel.1", f.Device)
			},
		},
		{
			name: "both families", env: envBoth, annotations: annotated("vxlan", `{"VNI":1,"VtepMAC":"3a:10:45:ad:ff:6e"}`),
			links: []model.Interface{eth0, flannel1, link("flannel-v6.1", "vxlan", 1430, "fd00:10:2::/128")},
			main: []string{
				"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450",
				"fd00:10:1::/64 via fd00:10:1:: dev flannel-v6.1 onlink mtu 1430",
				"fd00:10:2::/64 dev cni0 mtu 1430",
			},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, prefixes("10.244.2.0/24", "fd00:10:2::/64"), f.PodPrefixes)
				equal(t, prefixes("10.244.0.0/16", "fd00:10::/32"), f.ClusterPrefixes)
				equal(t, "flannel.1", f.Device)
				equal(t, []adapter.NextHop{
					hop(t, "10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450"),
					hop(t, "fd00:10:1::/64 via fd00:10:1:: dev flannel-v6.1 onlink mtu 1430"),
				}, f.NextHops)
				equal(t, []model.Warning(nil), f.Warnings)
			},
		},
		{
			name: "IPv6's device is missing: IPv4 goes on, with a word", env: envBoth,
			annotations: annotated("vxlan", `{"VNI":1,"VtepMAC":"3a:10:45:ad:ff:6e"}`),
			links:       []model.Interface{eth0, flannel1},
			check: func(t *testing.T, f adapter.Facts) {
				if len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0].Message, "flannel-v6.1") || f.Warnings[0].Object != "node/e2" {
					t.Errorf("warnings %v, want one about flannel-v6.1", f.Warnings)
				}
			},
		},
		{
			name: "IPv6 only", env: "FLANNEL_IPV6_NETWORK=fd00:10::/32\nFLANNEL_IPV6_SUBNET=fd00:10:2::1/64\nFLANNEL_MTU=1430\n",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-v6-data":     `{"VNI":1,"VtepMAC":"ae:21:c3:03:24:3b"}`,
				"flannel.alpha.coreos.com/backend-type":        "vxlan",
				"flannel.alpha.coreos.com/kube-subnet-manager": "true",
			},
			links: []model.Interface{eth0, link("flannel-v6.1", "vxlan", 1430)},
			check: func(t *testing.T, f adapter.Facts) { equal(t, "flannel-v6.1", f.Device) },
		},
		{
			name: "a pods' bridge under another name is excluded too", env: envV4,
			annotations: annotated("vxlan", `{"VNI":1}`),
			links:       []model.Interface{eth0, flannel1, link("kube-bridge", "bridge", 1450, "10.244.2.1/24")},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, []string{"cni0", "flannel*", "kube-bridge"}, f.ExcludeInterfaces)
			},
		},
		{
			name: "of two routes to one prefix the kernel takes the first", env: envV4,
			annotations: annotated("vxlan", `{"VNI":1}`), links: []model.Interface{eth0, flannel1},
			main: []string{
				"10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450",
				"10.244.1.0/24 via 10.0.0.77 dev eth0 mtu 1500",
			},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, []adapter.NextHop{hop(t, "10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink mtu 1450")}, f.NextHops)
			},
		},
		{
			name: "no API server: net-conf.json says it", env: envV4,
			netConf: `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 42}}`,
			links:   []model.Interface{eth0, flannel1, flannel42},
			check:   func(t *testing.T, f adapter.Facts) { equal(t, "flannel.42", f.Device) },
		},
		{
			name: "no API server, no net-conf.json: the kernel says it", env: envV4,
			links: []model.Interface{eth0, flannel42},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, "vxlan", f.Mode)
				equal(t, "flannel.42", f.Device)
			},
		},
		{
			name: "the same with a device left over: the one in use", env: envV4,
			links: []model.Interface{eth0, flannel1, flannel42},
			main:  []string{"10.244.1.0/24 via 10.244.1.0 dev flannel.42 onlink mtu 1400"},
			check: func(t *testing.T, f adapter.Facts) { equal(t, "flannel.42", f.Device) },
		},
		{
			name: "the same for host-gw: routes through no device of Flannel's", env: envV4,
			links: []model.Interface{eth0, cni0}, main: []string{"10.244.1.0/24 via 10.0.0.1 dev eth0 mtu 1500"},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, "host-gw", f.Mode)
				equal(t, "eth0", f.Device)
			},
		},
		{
			name: "a mangled annotation hurts nothing: the kernel tells the VNI", env: envV4,
			annotations: annotated("vxlan", `{"VNI":`), links: []model.Interface{eth0, flannel42},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, "flannel.42", f.Device)
				if len(f.Warnings) != 1 || f.Warnings[0].Kind != "BadAnnotation" || !strings.Contains(f.Warnings[0].Message, "backend-data") {
					t.Errorf("warnings %v, want one BadAnnotation about backend-data", f.Warnings)
				}
			},
		},
		{
			name: "a mangled net-conf.json hurts nothing either", env: envV4, netConf: `{"Network": "10.244.0.0/16", "Backend"`,
			links: []model.Interface{eth0, flannel1},
			check: func(t *testing.T, f adapter.Facts) {
				equal(t, "flannel.1", f.Device)
				if len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0].Message, "net-conf.json") {
					t.Errorf("warnings %v, want one about net-conf.json", f.Warnings)
				}
			},
		},

		// Not up yet: an error that names what is awaited.
		{name: "no subnet.env", annotations: annotated("vxlan", `{"VNI":1}`), links: []model.Interface{eth0}, err: []string{"not up", "subnet.env"}},
		{name: "subnet.env is nonsense", env: "hello\n", err: []string{"subnet.env: line 1"}},
		{
			name: "no device yet", env: envV4, annotations: annotated("vxlan", `{"VNI":42}`), links: []model.Interface{eth0, flannel1},
			err: []string{"waiting", "flannel.42", "only flannel.1"},
		},
		{
			name: "its device is down", env: envV4, annotations: annotated("vxlan", `{"VNI":1}`),
			links: []model.Interface{eth0, down(flannel1)}, err: []string{"waiting", "flannel.1", "down"},
		},
		{
			name: "a stranger by that name", env: envV4, annotations: annotated("vxlan", `{"VNI":1}`),
			links: []model.Interface{eth0, link("flannel.1", "veth", 1500)}, err: []string{"waiting", "flannel.1", "veth"},
		},
		{
			name: "nothing tells the backend", env: envV4, links: []model.Interface{eth0},
			err: []string{"backend", "flannel.alpha.coreos.com/backend-type", "net-conf.json"},
		},
		{
			name: "two devices and nothing tells which", env: envV4, links: []model.Interface{eth0, flannel1, flannel42},
			err: []string{"flannel.1, flannel.42", "flannel.alpha.coreos.com/backend-data"},
		},
		{
			name: "annotations on their way", env: envV4, age: time.Second, annotations: map[string]string{"kilo.squat.ai/key": "x"},
			links: []model.Interface{eth0, flannel1}, err: []string{"waiting", "kube-subnet-manager"},
		},

		// Not served: by name, and what to do.
		{
			name: "subnets in etcd", env: envV4, age: time.Hour, annotations: map[string]string{"kilo.squat.ai/key": "x"},
			links: []model.Interface{eth0, flannel1}, unsupported: true, err: []string{"etcd", "--kube-subnet-mgr"},
		},
		{
			name: "wireguard", env: envV4, annotations: annotated("wireguard", `{"PublicKey":"x"}`),
			links: []model.Interface{eth0, link("flannel-wg", "wireguard", 1420)}, unsupported: true, err: []string{`"wireguard"`, "vxlan or host-gw"},
		},
		{
			name: "wireguard, without an API server", env: envV4,
			links: []model.Interface{eth0, link("flannel-wg", "wireguard", 1420)}, unsupported: true, err: []string{`"wireguard"`},
		},
		{
			name: "udp, by net-conf.json", env: envV4, netConf: `{"Network": "10.244.0.0/16"}`,
			links: []model.Interface{eth0, link("flannel0", "tun", 1472)}, unsupported: true, err: []string{`"udp"`},
		},
	} {
		t.Run(d.name, d.run)
	}
}

// What the kernel could not tell is an error, never taken for absent.
func TestDiscoverKernelErrors(t *testing.T) {
	dir := t.TempDir()
	o := Options{SubnetFile: filepath.Join(dir, "subnet.env"), NetConfFiles: []string{}, Kernel: mute{}}
	write(t, o.SubnetFile, envV4)
	if _, err := New(o).Discover(t.Context()); !errors.Is(err, errMute) {
		t.Errorf("got %v, want %v", err, errMute)
	}
}

type mute struct{ kernelValue }

var errMute = errors.New("no answer")

func (mute) MainRoutes(context.Context) ([]adapter.NextHop, error) { return nil, errMute }

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	o := Options{SubnetFile: filepath.Join(dir, "run", "subnet.env"), NetConfFiles: []string{filepath.Join(dir, "net-conf.json")}, ChainedCilium: filepath.Join(dir, "state"), PollEvery: time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	hints := make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() { ended <- New(o).Watch(ctx, func() { hints <- struct{}{} }) }()
	time.Sleep(20 * time.Millisecond) // a watch that is not yet up has nothing to compare with

	step := func(what string, act func() error) {
		t.Helper()
		if err := act(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no hint", what)
		}
		time.Sleep(10 * time.Millisecond)
		for len(hints) > 0 {
			<-hints
		}
	}
	step("subnet.env appears, and its folder with it", func() error {
		if err := os.Mkdir(filepath.Dir(o.SubnetFile), 0o755); err != nil {
			return err
		}
		return os.WriteFile(o.SubnetFile, []byte(envV4), 0o644)
	})
	step("another file is put in its place, with the same size and time", func() error {
		info, err := os.Stat(o.SubnetFile)
		if err != nil {
			return err
		}
		next := o.SubnetFile + ".new"
		if err := os.WriteFile(next, []byte(strings.Replace(envV4, "10.244.2.1", "10.244.7.1", 1)), 0o644); err != nil {
			return err
		}
		if err := os.Chtimes(next, info.ModTime(), info.ModTime()); err != nil {
			return err
		}
		return os.Rename(next, o.SubnetFile)
	})
	step("net-conf.json appears", func() error { return os.WriteFile(o.NetConfFiles[0], []byte("{}"), 0o644) })
	step("Cilium runs beside it", func() error { return os.Mkdir(o.ChainedCilium, 0o755) })
	step("subnet.env goes", func() error { return os.Remove(o.SubnetFile) })

	time.Sleep(20 * time.Millisecond)
	if len(hints) > 0 {
		t.Errorf("%d hints while nothing happened", len(hints))
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch ended with %v, want the context's error", err)
	}
}
