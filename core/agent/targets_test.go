package agent

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// Who asks whom, from which address.
func TestProbeTargets(t *testing.T) {
	w2 := w1()
	w2.Name, w2.UID, w2.Key, w2.Epoch, w2.WireGuardIPs = "w2", "4", key("w2"), 0, nil
	w2.Endpoint = model.Endpoint{}
	w2.InternalIPs, w2.PodPrefixes = prefixes("192.168.9.10/24"), prefixes("10.244.10.0/24")
	n1 := w1()
	n1.Name, n1.UID, n1.Key, n1.Location, n1.WireGuardIPs = "n1", "5", key("n1"), "north", addrs("10.4.0.3")
	n1.InternalIPs, n1.PodPrefixes = prefixes("172.16.3.1/24"), prefixes("10.244.11.0/24")
	vip := w1()
	vip.AllowedLocationIPs = prefixes("192.0.2.0/28")

	ask := func(location, to, from string) target {
		return target{Place: place{Location: location}, To: netip.MustParseAddr(to), From: netip.MustParseAddr(from)}
	}
	// over is ask where a WireGuard peer is here.
	over := func(peer, location, to, from string) target {
		t := ask(location, to, from)
		t.Peer = key(peer)
		return t
	}
	for name, c := range map[string]struct {
		nodes []model.Node
		api   string
		self  string
		want  []target
	}{
		"no API server in the mesh":                    {[]model.Node{e1(), e2(), w1(), n1}, "203.0.113.200:6443", "e1", nil},
		"a gateway, from its WireGuard address":        {[]model.Node{e1(), e2(), w1(), n1}, "192.168.9.9:6443", "e1", []target{over("w1", "west", "10.4.0.2", "10.4.0.1")}},
		"a member, from its internal address":          {[]model.Node{e1(), e2(), w1(), n1}, "192.168.9.9:6443", "e2", []target{ask("west", "10.4.0.2", "10.0.0.2")}},
		"the API server's own node asks all":           {[]model.Node{e1(), e2(), w1(), n1}, "192.168.9.9:6443", "w1", []target{over("e1", "east", "10.4.0.1", "10.4.0.2"), over("n1", "north", "10.4.0.3", "10.4.0.2")}},
		"an API server behind its gateway":             {[]model.Node{e1(), w1(), w2}, "192.168.9.10:6443", "w2", []target{ask("east", "10.4.0.1", "192.168.9.10")}},
		"the gateway before it asks as well":           {[]model.Node{e1(), w1(), w2}, "192.168.9.10:6443", "w1", []target{over("e1", "east", "10.4.0.1", "10.4.0.2")}},
		"its other neighbours have nothing to ask":     {[]model.Node{e1(), w1(), w2}, "192.168.9.9:6443", "w2", nil},
		"an API server's VIP in allowed-location-ips":  {[]model.Node{e1(), vip}, "192.0.2.5:6443", "e1", []target{over("w1", "west", "10.4.0.2", "10.4.0.1")}},
		"a location whose gateway claimed no address":  {[]model.Node{e1(), w2}, "192.168.9.10:6443", "e1", nil},
		"a node that is in no snapshot":                {[]model.Node{e1(), w1()}, "192.168.9.9:6443", "x1", nil},
		"an API server in the own location, on no one": {[]model.Node{e1(), e2(), w1()}, "10.0.0.1:6443", "e2", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(c.nodes...)
			s.APIServers = []netip.AddrPort{netip.MustParseAddrPort(c.api)}
			if got := probeTargets(&s, plan.Locations(s), c.self); !reflect.DeepEqual(got, c.want) {
				t.Errorf("asks %v, want %v", got, c.want)
			}
		})
	}
}

func TestConnected(t *testing.T) {
	h := model.Host{Interfaces: []model.Interface{
		{Name: "lo", Up: true, Addresses: prefixes("127.0.0.1/8", "::1/128")},
		{Name: "eth0", Up: true, Addresses: prefixes("10.0.0.1/24", "fe80::1/64", "2001:db8::1/64")},
		{Name: "eth1", Up: true, Addresses: prefixes("203.0.113.1/32")},
		{Name: "eth2", Addresses: prefixes("172.16.0.1/12")},
		{Name: "kilo0", Up: true, Addresses: prefixes("10.4.0.1/16")},
		{Name: "cni0", Up: true, Addresses: prefixes("10.244.1.1/24")},
	}}
	if got, want := connected(h, "kilo0", []string{"cni*"}), prefixes("10.0.0.0/24", "2001:db8::/64"); !reflect.DeepEqual(got, want) {
		t.Errorf("connected %v, want %v", got, want)
	}
}
