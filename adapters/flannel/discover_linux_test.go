package flannel_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// inNamespace gives the rest of the test an empty network namespace. Its
// thread is never unlocked, so it ends with the test, and the namespace too.
func inNamespace(t *testing.T) {
	t.Helper()
	if reason := os.Getenv("KILO_TEST_SKIP_ROOT"); reason != "" {
		t.Skip(reason)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("needs root for a network namespace; set KILO_TEST_SKIP_ROOT=REASON to skip: %v", err)
	}
}

func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%s%v", script, out, err)
	}
	return string(out)
}

// What Flannel leaves in the kernel of node e2, as it names and sets things:
// e1 and w1 behind VXLAN with VNI 42, e3 on the same LAN by DirectRouting.
const flannelOnE2 = `
ip link set lo up
ip link add eth0 type veth peer name lan0
ip addr add 10.0.0.2/24 dev eth0
ip addr add fd00:a::2/64 dev eth0 nodad
ip link set eth0 up
ip link set lan0 up
ip link add flannel.1 type vxlan id 1 dev eth0 local 10.0.0.2 dstport 8472 nolearning # left over
ip link add flannel.42 type vxlan id 42 dev eth0 local 10.0.0.2 dstport 8472 nolearning
ip addr add 10.244.2.0/32 dev flannel.42
ip link set flannel.42 up
ip link add flannel-v6.42 type vxlan id 42 dev eth0 local fd00:a::2 dstport 8472 nolearning
ip addr add fd00:10:2::/128 dev flannel-v6.42 nodad
ip link set flannel-v6.42 mtu 1430 up
ip link add pods type bridge
ip addr add 10.244.2.1/24 dev pods
ip addr add fd00:10:2::1/64 dev pods nodad
ip link set pods up
ip route add default via 10.0.0.254
ip route add 10.244.1.0/24 via 10.244.1.0 dev flannel.42 onlink
ip route add 10.244.9.0/24 via 10.244.9.0 dev flannel.42 onlink
ip route add 10.244.3.0/24 via 10.0.0.3
ip route add 10.244.3.0/24 via 10.244.3.0 dev flannel.42 onlink metric 5
ip route add 10.245.0.0/24 via 10.0.0.3                      # somebody else's
ip route add unreachable 10.244.8.0/24                       # somebody else's
ip -6 route add fd00:10:1::/64 via fd00:10:1:: dev flannel-v6.42 onlink
ip -6 route add fd00:10:3::/64 via fd00:a::3 dev eth0 mtu 1400
`

// writeSubnetFile has Flannel itself write its subnet.env.
func writeSubnetFile(t *testing.T, file string) {
	t.Helper()
	conf, err := subnet.ParseConfig(`{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10::/32", "Backend": {"Type": "vxlan", "VNI": 42, "DirectRouting": true}}`)
	if err != nil {
		t.Fatal(err)
	}
	sn, sn6 := subnet.ParseSubnetKey("10.244.2.0-24&fd00:10:2::-64")
	if sn == nil || sn6 == nil {
		t.Fatal("Flannel does not take its own form of a subnet")
	}
	if err := subnet.WriteSubnetFile(file, conf, true, *sn, *sn6, 1430); err != nil {
		t.Fatal(err)
	}
}

func prefixList(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// The real kernel, and Flannel's own hand in its files: what is discovered is
// what stands there, what is injected is taken by the kernel and leads the way
// that Flannel's route leads, and main stays as it was.
func TestRealKernel(t *testing.T) {
	inNamespace(t)
	sh(t, flannelOnE2)
	k, err := kernel.New(kernel.Options{Interface: "kilo0"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	o := flannel.Options{
		Kernel:       k,
		Node:         "e2",
		SubnetFile:   filepath.Join(t.TempDir(), "subnet.env"),
		NetConfFiles: []string{},
		NodeAnnotations: func() map[string]string {
			return map[string]string{
				"flannel.alpha.coreos.com/backend-data":        `{"VNI":42,"VtepMAC":"3a:10:45:ad:ff:6e"}`,
				"flannel.alpha.coreos.com/backend-v6-data":     `{"VNI":42,"VtepMAC":"ae:21:c3:03:24:3b"}`,
				"flannel.alpha.coreos.com/backend-type":        "vxlan",
				"flannel.alpha.coreos.com/kube-subnet-manager": "true",
				"flannel.alpha.coreos.com/public-ip":           "10.0.0.2",
				"flannel.alpha.coreos.com/public-ipv6":         "fd00:a::2",
			}
		},
	}
	writeSubnetFile(t, o.SubnetFile)
	a := flannel.New(o)
	f, err := a.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	want := adapter.Facts{
		CNI: "flannel", Mode: "vxlan",
		PodPrefixes:     prefixList("10.244.2.0/24", "fd00:10:2::/64"),
		ClusterPrefixes: prefixList("10.244.0.0/16", "fd00:10::/32"),
		Device:          "flannel.42", DeviceMTU: 1450, PodMTU: 1430,
		PodMTUSetting: adapter.Setting{Where: `"MTU" in the Backend of Flannel's net-conf.json`, Add: 50},
		NextHops: []adapter.NextHop{
			{Prefix: netip.MustParsePrefix("10.244.1.0/24"), Via: addr("10.244.1.0"), Device: "flannel.42", OnLink: true, MTU: 1450},
			{Prefix: netip.MustParsePrefix("10.244.3.0/24"), Via: addr("10.0.0.3"), Device: "eth0", MTU: 1500},
			{Prefix: netip.MustParsePrefix("10.244.9.0/24"), Via: addr("10.244.9.0"), Device: "flannel.42", OnLink: true, MTU: 1450},
			{Prefix: netip.MustParsePrefix("fd00:10:1::/64"), Via: addr("fd00:10:1::"), Device: "flannel-v6.42", OnLink: true, MTU: 1430},
			{Prefix: netip.MustParsePrefix("fd00:10:3::/64"), Via: addr("fd00:a::3"), Device: "eth0", MTU: 1400},
		},
		ExcludeInterfaces: []string{"cni0", "flannel*", "pods"},
	}
	if diff := cmp.Diff(want, f, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Fatal(diff)
	}

	before := sh(t, "ip route show table main; ip -6 route show table main")
	node := func(name string, internal, pods []netip.Prefix) model.Node {
		return model.Node{Name: name, Location: "east", Spoken: true, InternalIPs: internal, PodPrefixes: pods}
	}
	e1 := node("e1", prefixList("10.0.0.1/24", "fd00:a::1/64"), prefixList("10.244.1.0/24", "fd00:10:1::/64"))
	e2 := node("e2", prefixList("10.0.0.2/24", "fd00:a::2/64"), prefixList("10.244.2.0/24", "fd00:10:2::/64"))
	e3 := node("e3", prefixList("10.0.0.3/24", "fd00:a::3/64"), prefixList("10.244.3.0/24", "fd00:10:3::/64"))
	remote := []adapter.Remote{
		{Prefix: netip.MustParsePrefix("10.244.9.0/24"), Location: "west", MTU: 1420},
		{Prefix: netip.MustParsePrefix("192.168.9.9/32"), Location: "west", MTU: 1420},
		{Prefix: netip.MustParsePrefix("fd00:10:9::/64"), Location: "west", MTU: 1400},
	}
	apply := func(v adapter.View) {
		t.Helper()
		add, err := a.Inject(v, f)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time finds them there
			for _, r := range add.Routes {
				if err := k.Apply(t.Context(), state.SetRoute{Route: r}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	leads := func(command, want string) {
		t.Helper()
		if got := sh(t, command); !strings.Contains(got, want) {
			t.Errorf("%s: got %swant %s", command, got, want)
		}
	}

	// As a member behind e1: packets of this node to the other location.
	apply(adapter.View{Self: e2, Gateway: &e1, Members: []model.Node{e1, e3}, Remote: remote, Interface: "kilo0"})
	sh(t, "ip rule add pref 107 lookup 1107; ip -6 rule add pref 107 lookup 1107")
	leads("ip route get 10.244.9.7", "via 10.244.1.0 dev flannel.42 table 1107 src 10.0.0.2")
	leads("ip route get 10.244.9.7", "mtu 1420")
	leads("ip route get 192.168.9.9", "via 10.244.1.0 dev flannel.42 table 1107 src 10.0.0.2")
	leads("ip -6 route get fd00:10:9::7", "via fd00:10:1:: dev flannel-v6.42 table 1107 proto 107 src fd00:a::2")
	leads("ip route get 10.244.1.7", "via 10.244.1.0 dev flannel.42 src") // main's, as before

	// As the gateway: packets out of the tunnel, here lan0, to members.
	apply(adapter.View{Self: e2, Serving: true, Gateway: &e2, Members: []model.Node{e1, e3}, Remote: remote, Interface: "kilo0"})
	sh(t, `ip rule add pref 106 iif lan0 lookup 1108
ip -6 rule add pref 106 iif lan0 lookup 1108
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
echo 0 >/proc/sys/net/ipv4/conf/lan0/rp_filter
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding`)
	leads("ip route get 10.0.0.1 from 198.51.100.9 iif lan0", "via 10.244.1.0 dev flannel.42 table 1108")
	leads("ip route get 10.0.0.3 from 198.51.100.9 iif lan0", "via 10.0.0.3 dev eth0 table 1108")
	leads("ip -6 route get fd00:a::1 from 2001:db8::9 iif lan0", "via fd00:10:1:: dev flannel-v6.42 table 1108")
	leads("ip -6 route get fd00:a::3 from 2001:db8::9 iif lan0", "via fd00:a::3 dev eth0 table 1108")
	leads("ip route get 10.0.0.1", "dev eth0 src") // this node's own packets go as before

	if after := sh(t, "ip route show table main; ip -6 route show table main"); after != before {
		t.Errorf("main changed: before\n%safter\n%s", before, after)
	}

	// Flannel's device goes, as when it is given another VNI.
	sh(t, "ip link del flannel.42")
	if _, err := a.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "waiting for flannel's device flannel.42") {
		t.Errorf("without its device: %v", err)
	}
}
