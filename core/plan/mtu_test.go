package plan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// TC39: what pods should get, from what the underlays carry: WireGuard takes 80 bytes,
// a VXLAN 50. East has e1 (gateway) and e2, west w1, south s1.
func TestPodMTU(t *testing.T) {
	type tunnels = map[string]int
	const underlay1500, underlay1400 = 1500 - 80, 1400 - 80
	all := func(mtu int) tunnels { return tunnels{"e1": mtu, "e2": mtu, "w1": mtu, "s1": mtu} }
	for name, c := range map[string]struct {
		self        string
		granularity model.Granularity // "": location
		tunnels     tunnels
		// hop is the MTU of the CNI's way to the gateway; overhead what its own
		// tunnel adds beyond it, and where pods do not cross by themselves.
		hop, overhead int
		pods          int // what they get
		want          int
		warns         string // "": not
	}{
		"Flannel, gateway":                           {self: "e1", tunnels: all(underlay1500), hop: 1450, pods: 1450, want: 1420, warns: "1420"},
		"Flannel, member":                            {self: "e2", tunnels: all(underlay1500), hop: 1450, pods: 1450, want: 1420, warns: "to 1470"},
		"Flannel, full":                              {self: "e2", granularity: model.Full, tunnels: all(underlay1500), hop: 1450, pods: 1450, want: 1420, warns: "1420"},
		"Flannel, cross":                             {self: "e2", granularity: model.Cross, tunnels: all(underlay1500), hop: 1450, pods: 1450, want: 1420, warns: "1420"},
		"Flannel, told":                              {self: "e2", tunnels: all(underlay1500), hop: 1420, pods: 1420, want: 1420},
		"Flannel, smaller than need be":              {self: "e2", tunnels: all(underlay1500), hop: 1450, pods: 1300, want: 1420},
		"Flannel on 1400":                            {self: "e2", tunnels: all(underlay1400), hop: 1350, pods: 1350, want: 1320, warns: "to 1370"},
		"host-gw":                                    {self: "e2", tunnels: all(underlay1500), hop: 1500, pods: 1500, want: 1420, warns: "1500"},
		"the own gateway's uplink is narrow":         {self: "e2", tunnels: tunnels{"e1": underlay1400, "e2": underlay1500, "w1": underlay1500, "s1": underlay1500}, hop: 1450, pods: 1450, want: 1320, warns: "1320"},
		"a member's own uplink carries nothing":      {self: "e2", tunnels: tunnels{"e1": underlay1500, "e2": underlay1400, "w1": underlay1500, "s1": underlay1500}, hop: 1450, pods: 1450, want: 1420, warns: "1420"},
		"it does in full":                            {self: "e2", granularity: model.Full, tunnels: tunnels{"e1": underlay1500, "e2": underlay1400, "w1": underlay1500, "s1": underlay1500}, hop: 1450, pods: 1450, want: 1320, warns: "1320"},
		"one of two other locations is narrow":       {self: "e1", tunnels: tunnels{"e1": underlay1500, "w1": underlay1400, "s1": underlay1500}, hop: 1450, pods: 1450, want: 1320, warns: "1320"},
		"the way to the gateway is narrowest":        {self: "e2", tunnels: all(underlay1500), hop: 1380, pods: 1450, want: 1380, warns: "1380"},
		"nobody's MTU is known":                      {self: "e2", tunnels: tunnels{}, pods: 1450, want: 0},
		"Cilium VXLAN, full":                         {self: "e2", granularity: model.Full, tunnels: all(underlay1500), overhead: 50, pods: 1450, want: 1370, warns: "1370"},
		"Cilium VXLAN, cross, on 1400":               {self: "e1", granularity: model.Cross, tunnels: all(underlay1400), overhead: 50, pods: 1350, want: 1270, warns: "1270"},
		"Cilium VXLAN, member behind kilo-vxlan":     {self: "e2", tunnels: all(underlay1500), hop: 1500 - 50, overhead: 50, pods: 1450, want: 1370, warns: "1370"},
		"Cilium VXLAN, LAN narrower than the tunnel": {self: "e2", tunnels: all(underlay1500), hop: 1400 - 50, overhead: 50, pods: 1300, want: 1300},
	} {
		t.Run(name, func(t *testing.T) {
			if c.granularity == "" {
				c.granularity = model.PerLocation
			}
			node := func(name, location string, i byte) model.Node {
				n := model.Node{Name: name, UID: name, Ready: true, Spoken: true, Location: location, Key: keyOf(name), Granularity: c.granularity,
					Endpoint:     model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, i}), Port: 51820},
					InternalIPs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i / 10, 0, i}), 24)},
					WireGuardIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, i})},
					PodPrefixes:  prefixes(fmt.Sprintf("10.244.%d.0/24", i)), TunnelMTU: c.tunnels[name], NodesOnly: c.overhead > 0}
				if name == "e1" {
					n.Epoch = 1
				}
				return n
			}
			s := model.Snapshot{Nodes: []model.Node{node("e1", "east", 11), node("e2", "east", 12), node("w1", "west", 21), node("s1", "south", 31)}, WireGuardSubnets: prefixes("10.4.0.0/16")}
			s.Sort()
			f := plan.Facts{Self: c.self, Interface: "kilo0", Port: 51820, Key: keyOf(c.self), TunnelMTU: c.tunnels[c.self], AdapterKnown: true,
				Direct: map[string]bool{"e1": true, "e2": true, "w1": true, "s1": true},
				Adapter: adapter.Facts{CNI: "x", PodMTU: c.pods, PodOverhead: c.overhead, NodesOnly: c.overhead > 0,
					PodMTUSetting: adapter.Setting{Where: `"MTU"`, Add: 50}}}
			for _, n := range s.Nodes {
				if n.Name != c.self {
					f.Adapter.NextHops = append(f.Adapter.NextHops, adapter.NextHop{Prefix: n.PodPrefixes[0], Via: n.PodPrefixes[0].Addr(), Device: "lan", OnLink: true, MTU: c.hop})
				}
			}
			_, report := plan.Plan(s, f, flannel.New(flannel.Options{}))
			if report.PodMTU != c.want {
				t.Errorf("best %d, want %d", report.PodMTU, c.want)
			}
			var said string
			for _, w := range report.Warnings {
				if w.Kind == "PodMTU" && w.Object == "node/"+c.self {
					said = w.Message
					if !w.Note {
						t.Error("pods that get a larger MTU break nothing, yet it is no note")
					}
				}
			}
			if (said != "") != (c.warns != "") || !strings.Contains(said, c.warns) || said != "" && !strings.Contains(said, fmt.Sprint(c.pods)) {
				t.Errorf("said %q, want %q", said, c.warns)
			}
		})
	}
}
