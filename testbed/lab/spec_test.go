package lab

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestDefaultIsTheDocumentedLab(t *testing.T) {
	spec, err := Default().Complete()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{ // LAN, public
		"a1": {"10.1.0.1", "198.51.100.11"},
		"a2": {"10.1.0.2", "198.51.100.12"},
		"a3": {"10.1.0.3", ""},
		"b1": {"10.2.0.1", "198.51.100.21"},
		"b2": {"10.2.0.2", ""},
		"c1": {"10.3.0.1", ""},
		"c2": {"10.3.0.2", ""},
		"cp": {"10.9.0.1", "198.51.100.10"},
	}
	pods := 0
	spec.nodes(func(loc *Location, n *Node) {
		public := ""
		if n.Public {
			public = n.PublicIP.String()
		}
		if got := [2]string{n.LAN.String(), public}; got != want[n.Name] {
			t.Errorf("%s: %v, want %v", n.Name, got, want[n.Name])
		}
		delete(want, n.Name)
		pods += n.Pods
	})
	if len(want) != 0 || pods != 7 {
		t.Errorf("missing %v; %d pods, want 7", want, pods)
	}
	if spec.RPFilter != RPFilterStrict || spec.MTU != 1500 {
		t.Errorf("rp_filter %s, MTU %d", spec.RPFilter, spec.MTU)
	}
}

// A spec that was completed is complete, also after it went through a file.
func TestCompleteIsIdempotent(t *testing.T) {
	once, err := Default().Complete()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(once)
	if err != nil {
		t.Fatal(err)
	}
	var read Spec
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	twice, err := read.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(once, twice) {
		t.Errorf("%+v\nis not\n%+v", once, twice)
	}
}

func TestCompleteRefuses(t *testing.T) {
	for problem, change := range map[string]func(*Spec){
		"used twice":             func(s *Spec) { s.Locations[1].Nodes[0].Name = "a1" },
		"belongs to node a1":     func(s *Spec) { s.Locations[1].Nodes[0].PublicIP = netip.MustParseAddr("198.51.100.11") },
		"outside 10.1.0.0/24":    func(s *Spec) { s.Locations[0].Nodes[0].LAN = netip.MustParseAddr("10.2.0.77") },
		"want exactly one":       func(s *Spec) { s.Locations[3].Nodes[0].ControlPlane = false },
		"needs a public leg":     func(s *Spec) { s.Locations[3].Nodes[0].Public = false },
		"does not exist":         func(s *Spec) { s.Locations[0].Nodes[2].Subnet = 1 },
		"backend \"wireguard\"":  func(s *Spec) { s.Flannel.Backend = "wireguard" },
		"CNI \"calico\"":         func(s *Spec) { s.CNI = "calico" },
		"cilium mode \"geneve\"": func(s *Spec) { s.CNI, s.Cilium.Mode = CNICilium, "geneve" },
		"host routing \"xdp\"":   func(s *Spec) { s.CNI, s.Cilium.HostRouting = CNICilium, "xdp" },
		"Cilium replaces it": func(s *Spec) {
			s.CNI, s.Cilium.HostRouting, s.ProxyMode = CNICilium, HostRoutingBPF, ProxyIPTables
		},
		"kube-proxy mode \"ipvs\"": func(s *Spec) { s.ProxyMode = "ipvs" },
		"node name \"a 1\"":        func(s *Spec) { s.Locations[0].Nodes[0].Name = "a 1" },
	} {
		spec := Default()
		change(&spec)
		if _, err := spec.Complete(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("want an error with %q, got %v", problem, err)
		}
	}
}

// The caller's spec stays as it is: Default() of one scenario is not another's.
func TestCompleteDoesNotChangeItsReceiver(t *testing.T) {
	spec := Default()
	if _, err := spec.Complete(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(spec, Default()) {
		t.Errorf("changed: %+v", spec)
	}
}

// Cilium's BPF host routing takes the place of kube-proxy, by itself.
func TestBPFHostRoutingReplacesKubeProxy(t *testing.T) {
	spec := Default()
	spec.CNI, spec.Cilium.HostRouting = CNICilium, HostRoutingBPF
	spec, err := spec.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if !spec.Cilium.KubeProxyReplacement || spec.ProxyMode != ProxyOff || spec.Cilium.Mode != CiliumTunnel {
		t.Errorf("%+v, kube-proxy %s", spec.Cilium, spec.ProxyMode)
	}
	if spec, err = Default().Complete(); err != nil || spec.ProxyMode != ProxyIPTables {
		t.Errorf("the default: kube-proxy %s (%v)", spec.ProxyMode, err)
	}
}
