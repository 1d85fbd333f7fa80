package plan_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// The encapsulation link leads to nodes of the own location and nowhere else, and
// the way back to members' pods only where these cross locations.
func TestAdmitEncapsulation(t *testing.T) {
	a := netip.MustParseAddr
	view := func(change func(*adapter.View)) adapter.View {
		v := adapter.View{
			Self: model.Node{Name: "e1", InternalIPs: prefixes("10.0.0.1/24"), PodPrefixes: prefixes("10.244.1.0/24")}, Serving: true,
			Members:   []model.Node{{Name: "e2", InternalIPs: prefixes("10.0.0.2/24"), PodPrefixes: prefixes("10.244.2.0/24")}},
			Interface: "kilo0", LAN: adapter.LAN{Device: "eth0", MTU: 1500},
		}
		if change != nil {
			change(&v)
		}
		return v
	}
	link := func(change func(*state.Link)) state.Link {
		l := state.Link{Name: state.VXLANLink, Kind: state.VXLAN, MTU: 1450, VXLAN: &state.VXLANConfig{
			ID: 1107, Port: 8473, Device: "eth0", Local: a("10.0.0.1"), MAC: "02:00:00:00:00:01",
			Remotes: []state.VXLANRemote{{Inner: a("10.0.0.2"), MAC: "02:00:00:00:00:02", Outer: a("10.0.0.2")}},
		}}
		if change != nil {
			change(&l)
		}
		return l
	}
	back := func(dst string) state.Route {
		return state.Route{Table: state.TableReturn, Dst: netip.MustParsePrefix(dst), Type: state.Unicast, Via: a("10.0.0.2"), Device: state.VXLANLink, OnLink: true}
	}
	for name, c := range map[string]struct {
		view    adapter.View
		add     adapter.Additions
		refused string
	}{
		"link":              {view: view(nil), add: adapter.Additions{Links: []state.Link{link(nil)}}},
		"another kind":      {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.Kind = state.WireGuard })}}, refused: "only a VXLAN"},
		"loopback":          {view: view(nil), add: adapter.Additions{Links: []state.Link{{Name: "lo", Kind: state.Loopback, Addresses: prefixes("10.9.9.9/32")}}}, refused: "only a VXLAN"},
		"another name":      {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.Name = "vxlan7" })}}, refused: "only a VXLAN"},
		"with an address":   {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.Addresses = prefixes("10.4.0.1/32") })}}, refused: "10.4.0.1/32"},
		"over another link": {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.VXLAN.Device = "eth1" })}}, refused: `"eth1"`},
		"over none": {view: view(func(v *adapter.View) { v.LAN = adapter.LAN{} }),
			add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.VXLAN.Device = "" })}}, refused: `""`},
		"from elsewhere":             {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.VXLAN.Local = a("198.51.100.1") })}}, refused: "198.51.100.1"},
		"to elsewhere":               {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.VXLAN.Remotes[0].Outer = a("192.168.9.9") })}}, refused: "192.168.9.9"},
		"for elsewhere":              {view: view(nil), add: adapter.Additions{Links: []state.Link{link(func(l *state.Link) { l.VXLAN.Remotes[0].Inner = a("192.168.9.9") })}}, refused: "192.168.9.9"},
		"back to a member":           {view: view(nil), add: adapter.Additions{Routes: []state.Route{back("10.0.0.2/32")}}},
		"back to its pods":           {view: view(nil), add: adapter.Additions{Routes: []state.Route{back("10.244.2.0/24")}}},
		"back to a part of its pods": {view: view(nil), add: adapter.Additions{Routes: []state.Route{back("10.244.2.0/25")}}, refused: "member"},
		"back to own pods":           {view: view(nil), add: adapter.Additions{Routes: []state.Route{back("10.244.1.0/24")}}, refused: "member"},
		"back to pods that the CNI tunnels": {view: view(func(v *adapter.View) { v.Members[0].NodesOnly = true }),
			add: adapter.Additions{Routes: []state.Route{back("10.244.2.0/24")}}, refused: "member"},
		"back to pods twice": {view: view(nil), add: adapter.Additions{Routes: []state.Route{back("10.244.2.0/24"), back("10.244.2.0/24")}}, refused: "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			links, routes, refused := plan.Admit(c.view, c.add)
			took := len(links) + len(routes)
			switch {
			case c.refused == "" && (len(refused) > 0 || took != len(c.add.Links)+len(c.add.Routes)):
				t.Errorf("refused: %v", refused)
			case c.refused != "" && (len(refused) != 1 || !strings.Contains(refused[0].Error(), c.refused)):
				t.Errorf("got %v, want a refusal with %q", refused, c.refused)
			}
		})
	}
}
