package render

import (
	"net/netip"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// The mesh that most tests look at: east with a gateway and a member, west
// with one node, each gateway with a public endpoint.
func fixture() model.Snapshot {
	return model.Snapshot{
		Nodes: []model.Node{
			{
				Name: "e1", UID: "1", Ready: true, Spoken: true, Location: "east", Key: key(1),
				Endpoint: endpoint("198.51.100.1:51820"), InternalIPs: prefixes("10.0.0.1/24"),
				WireGuardIPs: addresses("10.4.0.1"), PodPrefixes: prefixes("10.244.1.0/24"),
				Epoch: 1, Leader: true, TunnelMTU: 1420, Tunnel: "kernel",
			},
			{
				Name: "e2", UID: "2", Ready: true, Spoken: true, Location: "east", Key: key(2),
				InternalIPs: prefixes("10.0.0.2/24"), PodPrefixes: prefixes("10.244.2.0/24"),
				TunnelMTU: 1420, Tunnel: "userspace",
			},
			{
				Name: "w1", UID: "3", Ready: true, Spoken: true, Location: "west", Key: key(3),
				Endpoint: endpoint("203.0.113.9:51820"), InternalIPs: prefixes("192.168.9.9/24"),
				WireGuardIPs: addresses("10.4.0.2"), PodPrefixes: prefixes("10.244.9.0/24"),
				Epoch: 1, TunnelMTU: 1420, Tunnel: "kernel",
			},
		},
		WireGuardSubnets: prefixes("10.4.0.0/16"),
	}
}

// behindNAT is a location that nobody can speak to first.
func behindNAT(name string, id byte) model.Node {
	return model.Node{
		Name: name + "1", UID: string('0' + rune(id)), Ready: true, Spoken: true, Location: name, Key: key(id),
		InternalIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, id, 5}), 24)},
		PodPrefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 20 + id, 0}), 24)},
		Epoch:       1, TunnelMTU: 1420, Tunnel: "userspace",
	}
}

func laptop() model.Peer {
	return model.Peer{Name: "laptop", UID: "9", Key: key(9), AllowedIPs: prefixes("10.5.0.1/32"), Keepalive: 10 * time.Second}
}

func key(id byte) (k model.Key) {
	for i := range k {
		k[i] = id
	}
	return k
}

func endpoint(s string) model.Endpoint {
	ap := netip.MustParseAddrPort(s)
	return model.Endpoint{Addr: ap.Addr(), Port: ap.Port()}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}
