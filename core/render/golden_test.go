package render

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/report"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew; read the difference before you commit it")

// TestGolden compares every output with what a person read and found right.
func TestGolden(t *testing.T) {
	withPeers := func(change func(*model.Snapshot), peers ...model.Peer) model.Snapshot {
		s := fixture()
		s.Peers = peers
		if change != nil {
			change(&s)
		}
		s.Sort()
		return s
	}
	config := func(c Config, err error) string { return c.Text() + problem(err) }
	location := func(p Peer, notes []string, err error) string {
		return Config{Peers: []Peer{p}, Notes: notes}.Text() + problem(err)
	}
	nat := func(s *model.Snapshot) {
		s.Nodes = append(s.Nodes, behindNAT("home", 5), behindNAT("shed", 6))
		s.Nodes[0].Discovered = map[model.Key]netip.AddrPort{key(5): endpoint("203.0.113.50:40001").AddrPort()}
	}
	cross := func(s *model.Snapshot) {
		for i := range s.Nodes {
			n := &s.Nodes[i]
			n.Granularity = model.Cross
			n.Endpoint = model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), Port: 51820}
			n.WireGuardIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 4, 0, byte(i + 1)})}
		}
		w2 := behindNAT("west", 5)
		w2.Name, w2.Epoch, w2.Granularity, w2.WireGuardIPs = "w2", 0, model.Cross, addresses("10.4.0.5")
		w2.Endpoint = endpoint("198.51.100.5:51820")
		s.Nodes = append(s.Nodes, w2)
		s.Nodes[1].Silent = []string{"w1"}
	}
	server := model.Peer{
		Name: "server", UID: "8", Key: key(8), PresharedKey: model.NewPresharedKey(key(88)),
		AllowedIPs: prefixes("10.6.0.0/24", "2001:db8:6::/64"), Endpoint: model.Endpoint{Host: "vpn.example.com", Port: 4500},
	}

	for name, text := range map[string]string{
		// Every node meets those of other locations; e2 and w1 do not answer each other.
		"node-cross":  config(NodeConfig(withPeers(cross), "e2", 51820)),
		"graph-cross": Graph(withPeers(cross)),

		// A gateway, its member, and a gateway that Peers speak to.
		"node-gateway":    config(NodeConfig(withPeers(nil), "e1", 51820)),
		"node-member":     config(NodeConfig(withPeers(nil), "e2", 51820)),
		"node-with-peers": config(NodeConfig(withPeers(nil, laptop(), server), "w1", 51821)),
		// Behind NAT: who can be reached is kept alive.
		"node-behind-nat": config(NodeConfig(withPeers(nat), "home1", 51820)),

		// A location as a peer, asked for by its member, with more prefixes.
		"location-as-peer": location(LocationPeer(withPeers(func(s *model.Snapshot) {
			s.Nodes[1].AllowedLocationIPs = prefixes("10.99.0.0/24")
		}), "e2", prefixes("10.96.0.0/12"))),

		"peer":            config(OutsideConfig(withPeers(nil, laptop()), "laptop")),
		"peer-and-nat":    config(OutsideConfig(withPeers(nat, laptop()), "laptop")),
		"peer-reachable":  config(OutsideConfig(withPeers(nat, server), "server")),
		"peer-no-agents":  config(OutsideConfig(withPeers(silent, laptop()), "laptop")),
		"peer-dual-stack": config(OutsideConfig(withPeers(dualStack, laptop()), "laptop")),
		// The one address that west has is its endpoint: into the tunnel with
		// it, and the tunnel would carry itself.
		"peer-public-only-node": config(OutsideConfig(withPeers(func(s *model.Snapshot) {
			s.Nodes[2].InternalIPs = prefixes("203.0.113.9/32")
		}, laptop()), "laptop")),
		"peer-endpoint-in-allowed-location-ips": config(OutsideConfig(withPeers(func(s *model.Snapshot) {
			s.Nodes[0].AllowedLocationIPs = prefixes("203.0.113.8/30")
		}, laptop()), "laptop")),
		"peer-services": config(OutsideConfig(withPeers(func(s *model.Snapshot) {
			s.ServicePrefixes = prefixes("10.96.0.0/12")
		}, laptop()), "laptop")),
		// What a Peer claims and another party has is the other's.
		"peer-conflict": config(OutsideConfig(withPeers(nil, laptop(), model.Peer{
			Name: "thief", UID: "7", Key: key(7), AllowedIPs: prefixes("10.244.9.0/24", "10.7.0.1/32"),
		}), "laptop")),
		"peer-unknown": config(OutsideConfig(withPeers(nil, laptop()), "phone")),

		"peer-quick": quick(withPeers(nil, laptop()), "laptop"),
		"view": Look(withPeers(func(s *model.Snapshot) { nat(s); s.Nodes[1].Ready = false }, laptop()),
			[]model.Warning{{Kind: "BadPeer", Object: "peer/odd", Message: "spec.publicKey: not a key"}},
			answers(), map[string]string{"e2": "connection refused"}).Text(noon),
		"explain": explained(withPeers(nat, laptop(), server), "10.244.2.5 10.244.9.7", "10.244.1.5 10.244.2.5", "10.0.0.2 10.244.25.3",
			"10.5.0.1 10.244.2.5", "10.244.9.7 10.6.0.9", "10.244.9.7 203.0.113.200", "10.244.9.7 fd00::1"),
		"explain-breaks": explained(withPeers(func(s *model.Snapshot) {
			s.Nodes[2].Endpoint, s.Nodes[0].Endpoint = model.Endpoint{}, model.Endpoint{}
			s.Nodes = append(s.Nodes, model.Node{Name: "x1", Location: "x", PodPrefixes: prefixes("10.244.77.0/24"), InternalIPs: prefixes("10.7.7.7/32")})
		}), "10.244.2.5 10.244.9.7", "10.244.2.5 10.244.77.1"),
		"draw": Draw(withPeers(nil, laptop(), server)).SVG(),

		"graph":             Graph(withPeers(nil, laptop(), server)),
		"graph-behind-nat":  Graph(withPeers(nat)),
		"graph-odd-names":   Graph(withPeers(oddNames)),
		"graph-no-location": Graph(withPeers(func(s *model.Snapshot) { s.Nodes = s.Nodes[:2]; s.Nodes[0].Location, s.Nodes[1].Location = "", "" })),

		"nodes": Nodes(withPeers(func(s *model.Snapshot) {
			nat(s)
			s.Nodes[1].Ready = false
			s.Nodes = append(s.Nodes, model.Node{Name: "w2", Location: "west", Ready: true, PodPrefixes: prefixes("10.244.10.0/24", "fd00:10:244:a::/64")})
		}), map[string]time.Duration{"e1": 12400 * time.Millisecond, "w1": 3 * time.Minute}).String(),
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, text) })
	}
}

func problem(err error) string {
	if err == nil {
		return ""
	}
	return "error: " + err.Error() + "\n"
}

// silent takes the agent away from west.
func silent(s *model.Snapshot) {
	s.Nodes[2] = model.Node{Name: "w1", UID: "3", Ready: true, Location: "west", InternalIPs: prefixes("192.168.9.9/32"), PodPrefixes: prefixes("10.244.9.0/24")}
}

func dualStack(s *model.Snapshot) {
	w1 := &s.Nodes[2]
	w1.InternalIPs = append(w1.InternalIPs, prefixes("fd00::9/64")...)
	w1.PodPrefixes = append(w1.PodPrefixes, prefixes("fd00:10:244:9::/64")...)
	w1.Endpoint = endpoint("[2001:db8::9]:51820")
}

// oddNames are locations that people may write although nobody should.
func oddNames(s *model.Snapshot) {
	s.Nodes[0].Location, s.Nodes[1].Location = `say "east"`, `say "east"`
	s.Nodes[2].Location = "west\n[Peer]\\N"
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./core/render -update", err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("%s differs.\n--- got\n%s--- want\n%s", path, got, want)
	}
}

var noon = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)

func quick(s model.Snapshot, peer string) string {
	c, err := OutsideConfig(s, peer)
	return c.QuickText(OutsideInterface(s, peer), "") + problem(err)
}

// answers are what two gateways say.
func answers() map[string]*report.Status {
	at := func(seconds int) *time.Time { t := noon.Add(-time.Duration(seconds) * time.Second); return &t }
	return map[string]*report.Status{
		"e1": {Ready: true, Tunnel: report.Tunnel{Kind: "kernel"},
			Locations: []report.Location{{Name: "east", Gateway: "e1", Why: "its claim, epoch 1, is the location's highest"}},
			Peers: []report.Peer{
				{Name: "node/w1", Endpoint: "203.0.113.9:51820", LastHandshake: at(12), ReceivedBytes: 4 << 20, SentBytes: 1500},
				{Name: "peer/laptop", Endpoint: "203.0.113.200:4711", LastHandshake: at(100), ReceivedBytes: 1024, SentBytes: 0},
			}},
		"w1": {Waiting: []string{"the host CNI is not known: no subnet.env"}, Tunnel: report.Tunnel{Kind: "userspace"},
			Warnings: []model.Warning{{Kind: "BadPeer", Object: "peer/odd", Message: "spec.publicKey: not a key"}},
			Peers: []report.Peer{
				{Name: "node/e1", Endpoint: "198.51.100.1:51820", LastHandshake: at(12), ReceivedBytes: 1500, SentBytes: 4 << 20},
				{Name: "peer/laptop", Endpoint: "203.0.113.200:4712", LastHandshake: at(4000), ReceivedBytes: 5, SentBytes: 6},
			}},
	}
}

// explained follows several pairs of addresses.
func explained(s model.Snapshot, pairs ...string) string {
	var b strings.Builder
	for _, pair := range pairs {
		from, to, _ := strings.Cut(pair, " ")
		b.WriteString("$ explain " + pair + "\n" + Explain(s, netip.MustParseAddr(from), netip.MustParseAddr(to)).Text() + "\n")
	}
	return b.String()
}
