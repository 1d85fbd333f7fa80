package self_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/self"
)

// TC10: an address is public that the IANA registries do not reserve.
func TestPublic(t *testing.T) {
	for _, a := range []string{
		"100.64.1.1", "169.254.1.1", "198.18.0.1", "192.0.2.1", "172.31.0.1", "10.1.2.3", "127.0.0.1", "0.0.0.0",
		"192.168.1.1", "203.0.113.1", "198.51.100.1", "255.255.255.255", "224.0.0.1",
		"fd00::1", "fd12:3456::1", "fc00::1", "2001:db8::1", "fe80::1", "::1", "::", "ff02::1", "::ffff:10.0.0.1",
	} {
		if self.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s counts as public", a)
		}
	}
	for _, a := range []string{"172.32.0.1", "172.15.0.1", "8.8.8.8", "100.128.0.1", "2a01:4f8::1", "::ffff:8.8.8.8", "192.0.1.1"} {
		if !self.Public(netip.MustParseAddr(a)) {
			t.Errorf("%s does not count as public", a)
		}
	}
}

func iface(name, kind string, addrs ...string) model.Interface {
	i := model.Interface{Name: name, Kind: kind, Up: true, MTU: 1500}
	for _, a := range addrs {
		i.Addresses = append(i.Addresses, netip.MustParsePrefix(a))
	}
	return i
}

func input(interfaces ...model.Interface) self.Input {
	return self.Input{
		Node: "n", Interface: "kilo0",
		Host:     model.Host{Interfaces: interfaces, DefaultDevices: []string{"eth0"}},
		Settings: self.Settings{Port: 51820},
		Adapter:  adapter.Facts{CNI: "flannel", PodPrefixes: prefixes("10.244.5.0/24")},
		Overlay:  prefixes("10.244.0.0/16", "10.96.0.0/12", "10.4.0.0/16"),
	}
}

func prefixes(ps ...string) (out []netip.Prefix) {
	for _, p := range ps {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(as ...string) (out []netip.Addr) {
	for _, a := range as {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestLocation(t *testing.T) {
	for _, tc := range []struct{ annotation, label, flag, topology, want string }{
		{"", "", "", "r1", "r1"},
		{"", "edge", "", "r1", "edge"},
		{"lab", "edge", "", "r1", "lab"},
		{"", "", "shelf", "r1", "shelf"},
		{"", "edge", "shelf", "r1", "edge"},
		{"", "", "", "", ""},
	} {
		in := input(iface("eth0", "", "10.0.0.5/24"))
		in.Inputs = model.Inputs{LocationAnnotation: tc.annotation, LocationLabel: tc.label, TopologyLabel: tc.topology}
		in.Settings.Location = tc.flag
		if got := self.Decide(in).Published.Location; got != tc.want {
			t.Errorf("%+v: got %q", tc, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	many := []model.Interface{
		iface("cilium_host", "veth", "10.244.5.10/32"), iface("docker0", "bridge", "172.17.0.1/16"),
		iface("kube-ipvs0", "dummy", "10.96.0.1/32"), iface("kilo0", "wireguard", "10.4.0.3/16"),
		iface("tun100", "tun", "100.64.7.7/32"), iface("eth0", "", "10.0.0.5/24", "fe80::1/64"),
	}
	for _, tc := range []struct {
		name               string
		in                 func(*self.Input)
		interfaces         []model.Interface
		internal, endpoint string
		warning            string
	}{
		{"TC9: the Node's InternalIP, nothing public", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("10.0.0.5") }, many, "10.0.0.5/24", "", ""},
		{"TC9: no InternalIP known: a private one of the node's own", nil, many, "10.0.0.5/24", "", ""},
		{"InternalIP that no interface has", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("10.0.0.77") }, many, "10.0.0.77/32", "", ""},
		{"loopback InternalIP", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("127.0.0.1") }, many, "10.0.0.5/24", "", "loopback"},
		{"InternalIP is a Service address", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("10.96.0.1") }, many, "10.0.0.5/24", "", "Service"},
		{"public leg", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("10.0.0.5") },
			[]model.Interface{iface("eth0", "", "10.0.0.5/24"), iface("eth1", "", "8.8.4.4/24")}, "10.0.0.5/24", "8.8.4.4:51820", ""},
		{"reserved address as public", func(in *self.Input) { in.Settings.PublicCIDRs = prefixes("198.51.100.0/24") },
			[]model.Interface{iface("eth0", "", "10.0.0.5/24"), iface("eth1", "", "198.51.100.8/24")}, "10.0.0.5/24", "198.51.100.8:51820", ""},
		{"public only", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("8.8.4.4") },
			[]model.Interface{iface("eth0", "", "8.8.4.4/32")}, "8.8.4.4/32", "8.8.4.4:51820", ""},
		{"private preferred", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("8.8.4.4")
			in.Settings.PreferPrivate = true
		}, []model.Interface{iface("eth0", "", "8.8.4.4/32"), iface("eth1", "", "10.7.0.1/16")}, "10.7.0.1/16", "10.7.0.1:51820", ""},
		{"private preferred, and there is none", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("8.8.4.4")
			in.Settings.PreferPrivate = true
		}, []model.Interface{iface("eth0", "", "8.8.4.4/32")}, "8.8.4.4/32", "8.8.4.4:51820", ""},
		{"internal-cidr", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("10.0.0.5")
			in.Settings.InternalCIDRs = prefixes("10.7.0.0/16")
		}, []model.Interface{iface("eth0", "", "10.0.0.5/24"), iface("eth1", "", "10.7.0.1/16")}, "10.7.0.1/16", "", ""},
		{"excluded by name and prefix", func(in *self.Input) {
			in.Settings.ExcludeInterfaces = []string{"anchor*"}
			in.Settings.ExcludeCIDRs = prefixes("8.8.0.0/16")
		}, []model.Interface{iface("anchor0", "", "10.9.0.1/16"), iface("eth0", "", "10.0.0.5/24", "8.8.4.4/32")}, "10.0.0.5/24", "", ""},
		{"forced", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("10.0.0.5")
			in.Inputs.ForceInternalIPs = prefixes("192.168.7.1/24")
			in.Inputs.ForceEndpoint = model.Endpoint{Host: "vpn.example.com", Port: 4500}
		}, many, "192.168.7.1/24", "vpn.example.com:4500", ""},
		{"forced into a pod prefix", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("10.0.0.5")
			in.Inputs.ForceInternalIPs = prefixes("10.244.7.7/24")
		}, many, "10.0.0.5/24", "", "kilo.squat.ai/force-internal-ip: 10.244.7.7 is not used: it lies in a pod"},
		{"forced to a Service's address by the flag", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("10.0.0.5")
			in.Settings.ForceInternalIPs = prefixes("10.96.0.1/32", "fd00::5/64")
		}, many, "fd00::5/64", "", "--force-internal-ip: 10.96.0.1 is not used"},
		{"none wanted", func(in *self.Input) {
			in.Inputs.NodeInternalIPs = addrs("10.0.0.5")
			in.Inputs.NoInternalIP = true
		}, many, "", "", ""},
		{"both families", func(in *self.Input) { in.Inputs.NodeInternalIPs = addrs("fd00::5", "10.0.0.5") },
			[]model.Interface{iface("eth0", "", "10.0.0.5/24", "fd00::5/64")}, "10.0.0.5/24 fd00::5/64", "", ""},
		{"an interface that is down", nil, []model.Interface{{Name: "eth0", Addresses: prefixes("10.0.0.5/24")}}, "", "", "NoInternalIP"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input(tc.interfaces...)
			if tc.in != nil {
				tc.in(&in)
			}
			got := self.Decide(in)
			var internal []string
			for _, p := range got.Published.InternalIPs {
				internal = append(internal, p.String())
			}
			if strings.Join(internal, " ") != tc.internal || got.Published.Endpoint.String() != tc.endpoint {
				t.Errorf("got internal %v endpoint %q, want %s and %q", internal, got.Published.Endpoint, tc.internal, tc.endpoint)
			}
			var texts []string
			for _, w := range got.Warnings {
				texts = append(texts, w.String())
			}
			if all := strings.Join(texts, "\n"); tc.warning != "" && !strings.Contains(all, tc.warning) || tc.warning == "" && all != "" {
				t.Errorf("warnings %q, want one about %q", all, tc.warning)
			}
		})
	}
}

// With a strict reverse path filter neighbours cannot meet through the tunnel.
func TestFullNeedsLooseRPFilter(t *testing.T) {
	for filter, want := range map[int]model.Granularity{0: model.Full, 1: model.Cross, 2: model.Full} {
		lan := iface("eth0", "", "10.0.0.5/24")
		lan.RPFilter = filter
		in := input(lan)
		in.Settings.Granularity = model.Full
		got := self.Decide(in)
		if got.Published.Granularity != want || (len(got.Warnings) > 0) != (want == model.Cross) {
			t.Errorf("rp_filter %d: got %s, warnings %v; want %s", filter, got.Published.Granularity, got.Warnings, want)
		}
	}
}

// The CNI's record wins over the Node's spec, and the difference is said.
func TestPodPrefixes(t *testing.T) {
	for _, tc := range []struct {
		name, cni, spec, want, kind string
	}{
		{"equal", "10.244.5.0/24", "10.244.5.0/24", "10.244.5.0/24", ""},
		{"TC37a: several of the CNI's, none in the spec", "10.1.3.0/24 10.1.4.0/24", "", "10.1.3.0/24 10.1.4.0/24", ""},
		{"TC37b: they differ", "10.1.3.0/24", "10.244.5.0/24", "10.1.3.0/24", "PodPrefixDiffers"},
		{"TC37c: spec only, both families", "", "10.244.3.0/24 fd00:10:244:3::/64", "10.244.3.0/24 fd00:10:244:3::/64", ""},
		{"TC37d: none", "", "", "", "NoPodPrefix"},
		{"all addresses there are", "0.0.0.0/0 10.1.3.0/24", "", "10.1.3.0/24", "BadPodPrefix"},
		{"nothing else", "::/0", "10.1.3.0/24", "10.1.3.0/24", "BadPodPrefix"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input(iface("eth0", "", "10.0.0.5/24"))
			in.Adapter.PodPrefixes, in.Inputs.PodCIDRs = prefixes(strings.Fields(tc.cni)...), prefixes(strings.Fields(tc.spec)...)
			got := self.Decide(in)
			var texts []string
			for _, p := range got.Published.PodPrefixes {
				texts = append(texts, p.String())
			}
			if strings.Join(texts, " ") != tc.want {
				t.Errorf("got %v", texts)
			}
			var kinds []string
			for _, w := range got.Warnings {
				kinds = append(kinds, w.Kind)
			}
			if strings.Join(kinds, " ") != tc.kind {
				t.Errorf("warnings %v, want %q", got.Warnings, tc.kind)
			}
		})
	}
}
