package cluster

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/core/model"
)

// BenchmarkSnapshot is what one changed Node costs: reading it and making the
// whole snapshot anew.
func BenchmarkSnapshot(b *testing.B) {
	for _, count := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			c := New(Config{Node: "n0", WireGuardSubnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}})
			c.watched = []*source{{answered: true}, {answered: true}, {answered: true}}
			for i := range count {
				c.nodeChanged(spokenNode(i, 0), true)
			}
			for i := range 20 {
				k := model.Key{0: byte(i), 30: 1}
				name := fmt.Sprintf("p%d", i)
				c.peers[name] = peerEntry{peer: model.Peer{Name: name, UID: name, Key: k, AllowedIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, 0, byte(i)}), 32)}}}
			}
			s, warnings, complete := c.Snapshot()
			if len(s.Nodes) != count || len(s.Peers) != 20 || len(warnings) != 0 || !complete {
				b.Fatalf("%d nodes, %d peers, complete %v, warnings %v", len(s.Nodes), len(s.Peers), complete, warnings)
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				c.nodeChanged(spokenNode(n%count, n+1), false)
				c.Snapshot()
			}
		})
	}
}

func spokenNode(i, epoch int) *corev1.Node {
	var k model.Key
	binary.BigEndian.PutUint32(k[:], uint32(i)+1)
	host := func(net byte) netip.Addr { return netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)}) }
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("n%d", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1",
		Annotations: outputs(model.Published{
			Key: k, Location: fmt.Sprintf("l%d", i%20), Epoch: uint64(epoch), Granularity: model.PerLocation,
			InternalIPs:  []netip.Prefix{netip.PrefixFrom(host(0), 16)},
			WireGuardIPs: []netip.Addr{host(4)},
			PodPrefixes:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64 + byte(i>>8), byte(i), 0}), 24)},
			Tunnel:       "kernel", TunnelMTU: 1420,
		}),
	}}
}
