package flannel

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/core/adapter"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func addrs(texts ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range texts {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

// What Flannel writes to its Node for each backend.
func TestAnnotations(t *testing.T) {
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        record
		bad         string // part of the only complaint; "": none
	}{
		{
			name: "vxlan",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-data":        `{"VNI":1,"VtepMAC":"3a:10:45:ad:ff:6e"}`,
				"flannel.alpha.coreos.com/backend-type":        "vxlan",
				"flannel.alpha.coreos.com/kube-subnet-manager": "true",
				"flannel.alpha.coreos.com/public-ip":           "10.0.0.2",
			},
			want: record{Backend: "vxlan", VNI: 1, HasVNI: true, PublicIPs: addrs("10.0.0.2")},
		},
		{
			name: "vxlan, both families, VNI 42",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-data":    `{"VNI":42,"VtepMAC":"3a:10:45:ad:ff:6e"}`,
				"flannel.alpha.coreos.com/backend-v6-data": `{"VNI":42,"VtepMAC":"ae:21:c3:03:24:3b"}`,
				"flannel.alpha.coreos.com/backend-type":    "vxlan",
				"flannel.alpha.coreos.com/public-ip":       "10.0.0.2",
				"flannel.alpha.coreos.com/public-ipv6":     "fd00:a::2",
			},
			want: record{Backend: "vxlan", VNI: 42, HasVNI: true, PublicIPs: addrs("10.0.0.2", "fd00:a::2")},
		},
		{
			name: "vxlan, IPv6 only",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-v6-data": `{"VNI":7,"VtepMAC":"ae:21:c3:03:24:3b"}`,
				"flannel.alpha.coreos.com/backend-type":    "vxlan",
				"flannel.alpha.coreos.com/public-ipv6":     "fd00:a::2",
			},
			want: record{Backend: "vxlan", VNI: 7, HasVNI: true, PublicIPs: addrs("fd00:a::2")},
		},
		{
			name: "host-gw",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-data": "null",
				"flannel.alpha.coreos.com/backend-type": "host-gw",
				"flannel.alpha.coreos.com/public-ip":    "10.0.0.2",
			},
			want: record{Backend: "host-gw", PublicIPs: addrs("10.0.0.2")},
		},
		{
			name: "vxlan without a VNI",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-data": `{"VtepMAC":"3a:10:45:ad:ff:6e"}`,
				"flannel.alpha.coreos.com/backend-type": "vxlan",
			},
			want: record{Backend: "vxlan"},
			bad:  "flannel.alpha.coreos.com/backend-data: VNI",
		},
		{
			name: "vxlan with a VNI of 25 bits",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-data": `{"VNI":16777216}`,
				"flannel.alpha.coreos.com/backend-type": "vxlan",
			},
			want: record{Backend: "vxlan"},
			bad:  "0 to 16777215",
		},
		{
			name: "a mangled address hurts only itself",
			annotations: map[string]string{
				"flannel.alpha.coreos.com/backend-data": `{"VNI":1}`,
				"flannel.alpha.coreos.com/backend-type": "vxlan",
				"flannel.alpha.coreos.com/public-ip":    "10.0.0.256",
			},
			want: record{Backend: "vxlan", VNI: 1, HasVNI: true},
			bad:  `flannel.alpha.coreos.com/public-ip="10.0.0.256"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, bad := parseAnnotations(c.annotations)
			if diff := cmp.Diff(c.want, got, sameAddr); diff != "" {
				t.Error(diff)
			}
			if c.bad == "" && len(bad) > 0 || c.bad != "" && (len(bad) != 1 || !strings.Contains(bad[0], c.bad)) {
				t.Errorf("complaints %q, want %q", bad, c.bad)
			}
		})
	}
}

func TestNetConf(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       record
	}{
		{"as in Flannel's manifest", `{"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan"}}`,
			record{Backend: "vxlan", VNI: 1, HasVNI: true}},
		{"VNI and more", `{"Network": "10.42.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:42::/56", "Backend": {"Type": "vxlan", "VNI": 42, "DirectRouting": true}}`,
			record{Backend: "vxlan", VNI: 42, HasVNI: true}},
		{"host-gw", `{"Network": "10.42.0.0/16", "Backend": {"Type": "host-gw"}}`, record{Backend: "host-gw"}},
		{"no backend is Flannel's old default", `{"Network": "10.42.0.0/16"}`, record{Backend: "udp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseNetConf(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, sameAddr); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNetConfRefusesWithoutRepeatingSecrets(t *testing.T) {
	const secret = "c2VjcmV0LXByZS1zaGFyZWQta2V5LTMyLWJ5dGVzISE="
	for name, text := range map[string]string{
		"no JSON":             `{"Backend": {"Type": "wireguard", "PSK": "` + secret + `"`,
		"network":             `{"Network": "10.42.0.0", "Backend": {"Type": "wireguard", "PSK": "` + secret + `"}}`,
		"type of the backend": `{"Network": "10.42.0.0/16", "Backend": {"Type": 7, "PSK": "` + secret + `"}}`,
		"no type":             `{"Network": "10.42.0.0/16", "Backend": {"PSK": "` + secret + `"}}`,
		"VNI":                 `{"Network": "10.42.0.0/16", "Backend": {"Type": "vxlan", "VNI": "` + secret + `"}}`,
		"negative VNI":        `{"Network": "10.42.0.0/16", "Backend": {"Type": "vxlan", "VNI": -1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			r, err := parseNetConf(text)
			if err == nil {
				t.Fatalf("accepted: %+v", r)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats a key: %v", err)
			}
		})
	}
}

// TC4: a backend that is not served is refused by name, with what to do.
func TestBackendsRefusedByName(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		if err := supported(backend); err != nil {
			t.Errorf("%s: %v", backend, err)
		}
	}
	for _, backend := range []string{"udp", "wireguard", "ipsec", "ipip", "alloc", "extension", "tencent-vpc", "ali-vpc", "aws-vpc", "gce", "", "something-new"} {
		var u *adapter.Unsupported
		if !errors.As(supported(backend), &u) {
			t.Fatalf("%q is not refused", backend)
		}
		if !strings.Contains(u.What, `"`+backend+`"`) || !strings.Contains(u.Do, "use the backend vxlan") {
			t.Errorf("%q is refused with %q: no name or nothing to do", backend, u)
		}
	}
}

func FuzzAnnotations(f *testing.F) {
	f.Add("vxlan", `{"VNI":1,"VtepMAC":"3a:10:45:ad:ff:6e"}`, "10.0.0.2")
	f.Add("vxlan", "null", "::ffff:10.0.0.2")
	f.Add("host-gw", "", "fd00::1%eth0")
	f.Fuzz(func(t *testing.T, backend, data, public string) {
		r, _ := parseAnnotations(map[string]string{annotationBackend: backend, annotationData: data, annotationPublicIP: public})
		if r.Backend != backend {
			t.Errorf("backend %q became %q", backend, r.Backend)
		}
		if r.VNI > maxVNI || r.HasVNI && backend != backendVXLAN {
			t.Errorf("VNI %d, known: %t, for backend %q", r.VNI, r.HasVNI, backend)
		}
		for _, a := range r.PublicIPs {
			if !a.IsValid() || a.Is4In6() {
				t.Errorf("address %v", a)
			}
		}
	})
}

func FuzzNetConf(f *testing.F) {
	f.Add(`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`)
	f.Add(`{"EnableIPv6": true, "IPv6Network": "fd00:10:42::/56", "IPv6SubnetMin": "fd00::", "Backend": {"Type": "vxlan", "VNI": 42}}`)
	f.Add(`{"Network": null, "IPv6Network": "10.0.0.0/8", "SubnetLen": -1, "Backend": null}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseNetConf(text)
		if err == nil && r.Backend == "" {
			t.Error("accepted without a backend")
		}
		if r.VNI > maxVNI || r.HasVNI && r.Backend != backendVXLAN {
			t.Errorf("VNI %d, known: %t, for backend %q", r.VNI, r.HasVNI, r.Backend)
		}
	})
}
