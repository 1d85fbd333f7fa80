// Package crowd makes clusters of any size for measurements: nodes that look
// as if an agent ran on each, evenly spread over locations.
package crowd

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/kilo-overlay/kilo/core/model"
)

// Pods is the cluster's pod network: each node has a /24 of it. The first 256 of
// them are left to nodes that are no crowd.
func Pods() netip.Prefix { return netip.MustParsePrefix("100.64.0.0/10") }

// Node is the i-th node of a cluster with that many locations, i from 0. The
// first node of a location is its gateway and has an endpoint. At most 16,384
// nodes in 256 locations have addresses of their own.
func Node(i, locations int) model.Node {
	var key model.Key
	binary.BigEndian.PutUint32(key[:], uint32(i)+1)
	key[31] = 0x40 // as a clamped key has it
	location := i % locations
	n := model.Node{
		Name: fmt.Sprintf("n%05d", i), UID: fmt.Sprintf("uid-%05d", i), Ready: true, Spoken: true, Key: key,
		Location: fmt.Sprintf("l%03d", location), Granularity: model.PerLocation, Tunnel: "kernel", TunnelMTU: 1420,
		InternalIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 16)},
		PodPrefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 65 + byte(i>>8), byte(i), 0}), 24)},
	}
	if i < locations {
		n.Epoch = 1
		n.WireGuardIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 100 + byte(i>>8), byte(i)})}
		n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 200 + byte(i>>8), byte(i)}), Port: 51820}
	}
	return n
}

// Snapshot is a cluster of that many nodes.
func Snapshot(nodes, locations int) model.Snapshot {
	s := model.Snapshot{
		WireGuardSubnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")},
		ServicePrefixes:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
	for i := range nodes {
		s.Nodes = append(s.Nodes, Node(i, locations))
	}
	s.Sort()
	return s
}
