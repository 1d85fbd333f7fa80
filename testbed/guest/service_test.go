package guest

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/guest/inside"
	"github.com/kilo-overlay/kilo/testbed/lab"
	"github.com/kilo-overlay/kilo/testbed/tools"
)

// kube-proxy in ipvs mode, which the kernels of most machines have and some
// that labs run on have not: who calls a Service with a backend in another
// location is seen there under its own address.
func TestServicesByIPVS(t *testing.T) {
	need(t, Check())
	need(t, lab.Check())
	cp := lab.Default().Locations[len(lab.Default().Locations)-1]
	l := up(t, lab.Spec{
		CNI: lab.CNINone, ProxyMode: lab.ProxyOff, NoAgent: true,
		Locations: []lab.Location{NodeMachine("east", 1), NodeMachine("west", 2), cp},
	})
	machines := []*lab.Machine{l.Machine("east"), l.Machine("west")}
	g, err := WithNodes(t.Context(), progress{t}, l, "./testbed/guest/services", t.TempDir(), machines...)
	if err != nil {
		t.Fatal(err)
	}
	var services []inside.Service
	for _, m := range machines {
		prefix, err := m.PodPrefix(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pod := prefix.Addr().Next().Next() // as inside.startPod gives it
		for name, backend := range map[string]netip.Addr{m.Name + "-pod": pod, m.Name + "-host": m.Addr} {
			at, err := l.ExposeAddress(t.Context(), name, netip.AddrPortFrom(backend, inside.CallerPort))
			if err != nil {
				t.Fatal(err)
			}
			services = append(services, inside.Service{Address: at, Node: m.Name, HostNetwork: backend == m.Addr})
		}
	}
	paths, err := tools.Ensure(t.Context(), progress{t}, "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	g.Files[inside.ServicesFile] = mustJSON(services)
	if g.Files[inside.ProxyAccess], err = kubeconfig(l.Kubeconfig("kube-proxy")); err != nil {
		t.Fatal(err)
	}
	g.Programs[inside.ProxyProgram] = paths[tools.KubeProxy]
	for to, from := range host(t, "ipset", "conntrack") {
		g.Programs[to] = from
	}
	g.MemoryMiB = 1536
	g.Modules = []string{
		"ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "ip_set", "ip_set_bitmap_port",
		"ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_hash_net",
		"xt_set", "xt_addrtype", "xt_MASQUERADE", "xt_nat", "xt_multiport",
	}
	for _, r := range boot(t, g, 10*time.Minute, l.Machine(controlPlane).Exec) {
		t.Log("\n" + filepath.Base(g.Commands[0].Args[0]) + "\n" + r.Output)
	}
}
