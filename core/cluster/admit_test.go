package cluster_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

// f1 is a cluster of two locations: e1 and e2 in east, w1 in west.
func f1() model.Snapshot {
	node := func(name, location, internal, pods, wireGuard string, k byte) model.Node {
		n := model.Node{
			Name: name, UID: "uid-" + name, Ready: true, Spoken: true, Location: location, Key: model.Key{k},
			InternalIPs: prefixes(internal), PodPrefixes: prefixes(pods),
		}
		if wireGuard != "" {
			n.WireGuardIPs = addrs(wireGuard)
		}
		return n
	}
	return model.Snapshot{
		Nodes: []model.Node{
			node("e1", "east", "10.0.0.1/24", "10.244.1.0/24", "10.4.0.1", 1),
			node("e2", "east", "10.0.0.2/24", "10.244.2.0/24", "", 2),
			node("w1", "west", "192.168.9.9/24", "10.244.9.0/24", "10.4.0.2", 3),
		},
		WireGuardSubnets: prefixes("10.4.0.0/16"),
		ServicePrefixes:  prefixes("10.96.0.0/12"),
		APIServers:       []netip.AddrPort{netip.MustParseAddrPort("198.51.100.200:6443")},
	}
}

func peer(name string, seq int64, k byte, allowed ...string) model.Peer {
	return model.Peer{Name: name, UID: "uid-" + name, Seq: seq, Key: model.Key{k}, AllowedIPs: prefixes(allowed...)}
}

func names(peers []model.Peer) (out []string) {
	for _, p := range peers {
		out = append(out, p.Name)
	}
	return out
}

// TC28: a default route is taken where it is meant, by one Peer, the oldest, and takes
// nothing from anybody.
func TestDefaultRoute(t *testing.T) {
	s := f1()
	exit := func(name string, seq int64, k byte) model.Peer {
		p := peer(name, seq, k, "0.0.0.0/0", "10.7.0.0/24")
		p.DefaultRoute = true
		return p
	}
	late := exit("late", 3, 12)
	late.AllowedIPs = prefixes("0.0.0.0/0")
	s.Peers = []model.Peer{exit("exit", 2, 10), peer("older", 1, 9, "10.6.0.1/32"), late, peer("younger", 4, 13, "10.6.0.2/32")}
	got, warnings := cluster.Admit(s)
	if want := []string{"exit", "older", "younger"}; !slices.Equal(names(got.Peers), want) {
		t.Errorf("admitted %v, want %v: %v", names(got.Peers), want, warnings)
	}
	if len(warnings) != 1 || warnings[0].Kind != cluster.DuplicatePeer || warnings[0].Object != "peer/late" || !strings.Contains(warnings[0].Message, "of peer exit") {
		t.Errorf("warnings %v", warnings)
	}
	greedy := exit("greedy", 1, 9)
	greedy.AllowedIPs = prefixes("0.0.0.0/0", "10.244.1.0/24")
	s.Peers = []model.Peer{greedy}
	if got, warnings := cluster.Admit(s); len(got.Peers) != 0 || len(warnings) != 1 || warnings[0].Kind != cluster.PeerTakesCluster {
		t.Errorf("with a pod prefix beside the default route: %v, %v", got.Peers, warnings)
	}
}

// TC27, TC28: what is the cluster's stays the cluster's, and all of the Peer is left out.
func TestPeerThatTakesFromTheCluster(t *testing.T) {
	for _, c := range []struct {
		allowed string
		kind    string // "": admitted
		says    string
	}{
		{"10.5.0.1/32", "", ""},
		{"fd00:5::1/128", "", ""},
		{"10.0.1.0/24", "", ""}, // beside the nodes
		{"10.244.9.0/24", cluster.PeerTakesCluster, "pods of node w1"},
		{"10.244.9.7/32", cluster.PeerTakesCluster, "10.244.9.0/24, pods of node w1"},
		{"10.244.0.0/16", cluster.PeerTakesCluster, "10.244.1.0/24, pods of node e1"},
		{"192.168.9.9/32", cluster.PeerTakesCluster, "the address of node w1"},
		{"192.168.0.0/16", cluster.PeerTakesCluster, "the address of node w1"},
		{"10.4.0.0/16", cluster.PeerTakesCluster, "WireGuard addresses"},
		{"10.4.7.7/32", cluster.PeerTakesCluster, "WireGuard addresses"},
		{"10.96.0.0/12", cluster.PeerTakesCluster, "the range of Services"},
		{"10.96.0.1/32", cluster.PeerTakesCluster, "the range of Services"},
		{"198.51.100.200/32", cluster.PeerTakesCluster, "an API server"},
		{"0.0.0.0/1", cluster.PeerTakesCluster, "overlaps"},
		{"0.0.0.0/0", cluster.PeerTakesAll, "all traffic"},
		{"::/0", cluster.PeerTakesAll, "all traffic"},
	} {
		t.Run(c.allowed, func(t *testing.T) {
			s := f1()
			s.Peers = []model.Peer{peer("good", 1, 9, "10.6.0.1/32"), peer("laptop", 2, 10, c.allowed)}
			got, warnings := cluster.Admit(s)
			if c.kind == "" {
				if len(warnings) != 0 || len(got.Peers) != 2 {
					t.Errorf("not admitted: %v", warnings)
				}
				return
			}
			if !slices.Equal(names(got.Peers), []string{"good"}) {
				t.Errorf("peers %v, want good alone", names(got.Peers))
			}
			if len(warnings) != 1 || warnings[0].Kind != c.kind {
				t.Fatalf("warnings %v, want one of kind %s", warnings, c.kind)
			}
			wantSays(t, warnings, "peer/laptop", "spec.allowedIPs", c.allowed, c.says)
			if len(s.Peers) != 2 {
				t.Errorf("the snapshot given was changed")
			}
		})
	}
}

func TestAllowedLocationIPsAreTheClusters(t *testing.T) {
	s := f1()
	s.Nodes[0].AllowedLocationIPs = prefixes("172.20.0.0/16", "0.0.0.0/0")
	s.Peers = []model.Peer{peer("a", 1, 9, "172.20.1.0/24"), peer("b", 2, 10, "172.21.1.0/24")}
	got, warnings := cluster.Admit(s)
	if !slices.Equal(names(got.Peers), []string{"b"}) {
		t.Errorf("peers %v, want b", names(got.Peers))
	}
	wantSays(t, warnings, "peer/a", "allowed-location-ips of node e1")
}

// The older Peer stays, whatever the names, and one that is left out stands in
// nobody's way.
func TestPeersThatClash(t *testing.T) {
	for _, c := range []struct {
		name  string
		peers []model.Peer
		stay  []string
	}{
		{"one key", []model.Peer{peer("a", 2, 9, "10.5.0.1/32"), peer("b", 1, 9, "10.5.0.2/32")}, []string{"b"}},
		{"one address", []model.Peer{peer("a", 2, 9, "10.5.0.1/32"), peer("b", 1, 10, "10.5.0.1/32")}, []string{"b"}},
		{"inside", []model.Peer{peer("a", 1, 9, "10.5.0.0/24"), peer("b", 2, 10, "10.5.0.7/32")}, []string{"a"}},
		{"around", []model.Peer{peer("a", 2, 9, "10.5.0.0/24"), peer("b", 1, 10, "10.5.0.7/32")}, []string{"b"}},
		{"same age, lower UID", []model.Peer{peer("b", 1, 9, "10.5.0.1/32"), peer("a", 1, 10, "10.5.0.1/32")}, []string{"a"}},
		{"a node's key", []model.Peer{peer("a", 1, 3, "10.5.0.1/32")}, nil},
		{"beside each other", []model.Peer{peer("a", 1, 9, "10.5.0.0/25"), peer("b", 2, 10, "10.5.0.128/25")}, []string{"a", "b"}},
		{"the middle one is refused, the last fits", []model.Peer{
			peer("a", 1, 9, "10.5.0.1/32"), peer("b", 2, 10, "10.5.0.1/32", "10.7.0.0/16"), peer("c", 3, 11, "10.7.0.1/32"),
		}, []string{"a", "c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // in either order
				s := f1()
				s.Peers = c.peers
				got, warnings := cluster.Admit(s)
				if !slices.Equal(names(got.Peers), c.stay) {
					t.Errorf("peers %v, want %v", names(got.Peers), c.stay)
				}
				if len(warnings) != len(c.peers)-len(c.stay) {
					t.Errorf("warnings: %v", warnings)
				}
				for _, w := range warnings {
					if w.Kind != cluster.DuplicatePeer || !strings.Contains(w.Message, "spec.") {
						t.Errorf("warning %v", w)
					}
				}
				slices.Reverse(c.peers)
			}
		})
	}
}
