package guest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/kilo-overlay/kilo/testbed/guest/inside"
	"github.com/kilo-overlay/kilo/testbed/lab"
	"github.com/kilo-overlay/kilo/testbed/tools"
)

// WithNodes is a guest that holds nodes of a lab's cluster and runs a program,
// built from pkg, that does something to them (see package inside). The nodes
// are machines of the lab as well, so that their Node objects are there and stay
// ready, but what they run, they run in the guest. It must be booted where the
// control plane is, for that is what the guest then reaches. Programs are built
// to dir.
func WithNodes(ctx context.Context, w io.Writer, l *lab.Lab, pkg, dir string, machines ...*lab.Machine) (*Guest, error) {
	paths, err := tools.Ensure(ctx, w, "flannel")
	if err != nil {
		return nil, err
	}
	program := "/usr/bin/" + filepath.Base(pkg)
	g := &Guest{Init: filepath.Join(dir, "init"), Network: true, Commands: []Command{{Args: []string{program}}}}
	g.Programs, err = HostPrograms("sh", "ip", "nft", "cat", "mount", "hostname", "nsenter", "ping")
	if err != nil {
		return nil, err
	}
	for to, from := range map[string]string{
		g.Init: "./testbed/guest/init", filepath.Join(dir, "kg"): "./cmd/kg", filepath.Join(dir, "program"): pkg,
	} {
		if err := Build(ctx, to, from); err != nil {
			return nil, err
		}
	}
	g.Programs[inside.AgentProgram] = filepath.Join(dir, "kg")
	g.Programs[inside.FlannelProgram] = paths[tools.Flanneld]
	g.Programs[program] = filepath.Join(dir, "program")
	// Flannel masquerades by nftables here, and looks by iptables whether an
	// earlier one did otherwise.
	iptables, err := IPTables()
	if err != nil {
		return nil, err
	}
	maps.Copy(g.Programs, iptables)
	c := inside.Config{API: l.Machine(controlPlane).Public.String(), ServiceNetwork: l.Spec.ServiceNetwork.String()}
	for _, m := range machines {
		gateway := netip.AddrFrom4([4]byte{10, m.Addr.As4()[1], 0, 254})
		c.Nodes = append(c.Nodes, inside.NodeConfig{Name: m.Name, Address: m.Addr.String(), Gateway: gateway.String()})
	}
	g.Files = map[string][]byte{
		"/etc/protocols":      []byte(protocols),
		inside.ConfigFile:     mustJSON(c),
		inside.FlannelNetwork: fmt.Appendf(nil, `{"Network": %q, "EnableNFTables": true, "Backend": {"Type": "vxlan"}}`, l.Spec.PodNetwork),
	}
	for to, user := range map[string]string{inside.AgentAccess: "agent", inside.FlannelAccess: "flannel"} {
		if g.Files[to], err = kubeconfig(l.Kubeconfig(user)); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// controlPlane is the name of the control plane's host in labs for guests.
const controlPlane = "cp"

// protocols is what ip wants of /etc/protocols.
const protocols = "icmp 1\ntcp 6\nudp 17\nipv6-icmp 58\n"

// NodeMachine is a location with one machine for WithNodes: on subnet
// 10.NUMBER.0.0/24, with an endpoint there.
func NodeMachine(name string, number byte) lab.Location {
	address := netip.AddrFrom4([4]byte{10, number, 0, 1})
	return lab.Location{
		Name: name, Subnets: []netip.Prefix{netip.PrefixFrom(address, 24).Masked()},
		Nodes: []lab.Node{{
			Name: name, LAN: address, NoAgent: true,
			Annotations: map[string]string{"kilo.squat.ai/force-endpoint": address.String() + ":51820"},
		}},
	}
}

// kubeconfig reads one and puts everything inside that it names.
func kubeconfig(file string) ([]byte, error) {
	config, err := clientcmd.LoadFromFile(file)
	if err == nil {
		err = api.FlattenConfig(config)
	}
	if err != nil {
		return nil, err
	}
	return clientcmd.Write(*config)
}
