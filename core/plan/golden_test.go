package plan_test

import (
	"bufio"
	"crypto/sha256"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/adapters/cilium"
	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

var update = flag.Bool("update", false, "write the golden files anew; read the difference before you commit it")

// A golden file says what is known, in lines, and below "---" what the node
// named by "self" should hold. One idea a file.
//
//	self e1                  the node that plans
//	node NAME KEY=VALUE…     a Node (see parseNode)
//	peer NAME KEY=VALUE…     a Peer
//	hop PREFIX via A dev D [onlink] [mtu N]     Flannel's own route in main
//	connected PREFIX         a network of this node's interfaces
//	service PREFIX, api ADDR:PORT, live LOCATION, silent (no CNI found)
//	direct NODE              the node answers over the link with it
//	path NODE BYTES          what reaches the node over its WireGuard peer
//	tagged                   what is forwarded for the mesh is to be known to others
//	show LINE-BEGINNINGS     only lines of the result that begin so
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(raw), "\n---\n")
			got := runCase(t, input)
			if *update {
				if err := os.WriteFile(file, []byte(input+"\n---\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
			}
		})
	}
}

func runCase(t *testing.T, input string) string {
	t.Helper()
	c := parseCase(t, input)
	st, report := plan.Plan(c.snapshot, c.facts, c.adapter)
	st.Normalize()
	var b strings.Builder
	fmt.Fprintf(&b, "role %s\n", report.Role)
	for _, w := range report.Waiting {
		fmt.Fprintf(&b, "waiting: %s\n", w)
	}
	for _, w := range report.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	b.WriteString(keysByName(st.String(), c.snapshot))
	return filterLines(b.String(), c.show)
}

// keysByName keeps golden files readable: a key is named after its owner.
func keysByName(s string, snap model.Snapshot) string {
	for _, n := range snap.Nodes {
		s = strings.ReplaceAll(s, n.Key.String(), "KEY("+n.Name+")")
	}
	for _, p := range snap.Peers {
		s = strings.ReplaceAll(s, p.Key.String(), "KEY("+p.Name+")")
	}
	return s
}

// filterLines keeps the lines that begin, after white space, with one of show.
func filterLines(s string, show []string) string {
	if len(show) == 0 {
		return s
	}
	var b strings.Builder
	for _, line := range strings.SplitAfter(s, "\n") {
		trimmed := strings.TrimSpace(line)
		if slices.ContainsFunc(show, func(p string) bool { return strings.HasPrefix(trimmed, p) }) {
			b.WriteString(line)
		}
	}
	return b.String()
}

type goldenCase struct {
	snapshot model.Snapshot
	facts    plan.Facts
	adapter  adapter.Adapter
	show     []string
}

func parseCase(t *testing.T, input string) goldenCase {
	t.Helper()
	c := goldenCase{
		adapter:  flannel.New(flannel.Options{}),
		snapshot: model.Snapshot{WireGuardSubnets: prefixes("10.4.0.0/16")},
		facts: plan.Facts{Interface: "kilo0", Port: 51820, TunnelMTU: 1420, AdapterKnown: true, Live: map[string]bool{}, Direct: map[string]bool{}, PathMTU: map[string]int{},
			Adapter: adapter.Facts{CNI: "flannel", Mode: "vxlan", ClusterPrefixes: prefixes("10.244.0.0/16")}},
	}
	lines := bufio.NewScanner(strings.NewReader(input))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		switch f[0] {
		case "self":
			c.facts.Self = f[1]
		case "node":
			c.snapshot.Nodes = append(c.snapshot.Nodes, parseNode(t, f[1], f[2:]))
		case "peer":
			c.snapshot.Peers = append(c.snapshot.Peers, parsePeer(t, f[1], f[2:]))
		case "hop":
			c.facts.Adapter.NextHops = append(c.facts.Adapter.NextHops, parseHop(t, f[1:]))
		case "connected":
			c.facts.Connected = append(c.facts.Connected, netip.MustParsePrefix(f[1]))
		case "service":
			c.snapshot.ServicePrefixes = append(c.snapshot.ServicePrefixes, netip.MustParsePrefix(f[1]))
		case "api":
			c.snapshot.APIServers = append(c.snapshot.APIServers, netip.MustParseAddrPort(f[1]))
		case "live":
			c.facts.Live[f[1]] = true
		case "direct":
			c.facts.Direct[f[1]] = true
		case "path": // NODE BYTES
			n, _ := strconv.Atoi(f[2])
			c.facts.PathMTU[f[1]] = n
		case "tagged":
			c.facts.TagForwarded = true
		case "cilium": // tunnel|native ENCAPSULATION
			c.adapter = cilium.New(cilium.Options{Encapsulation: cilium.Encapsulation(f[2])})
			c.facts.Adapter = ciliumFacts(f[1] == "tunnel")
			c.facts.LAN = adapter.LAN{Device: "eth0", MTU: 1500}
			if f[1] == "tunnel" {
				for i := range c.snapshot.Nodes {
					c.snapshot.Nodes[i].NodesOnly = true
				}
			}
		case "unnumbered":
			c.facts.Adapter.Unnumbered = true
		case "silent":
			c.facts.AdapterKnown, c.facts.Adapter = false, adapter.Facts{}
		case "show":
			c.show = append(c.show, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "show")))
		default:
			t.Fatalf("unknown line %q", lines.Text())
		}
	}
	c.snapshot.Sort()
	if n := c.snapshot.Node(c.facts.Self); n != nil {
		c.facts.Key = n.Key
		if len(c.facts.Adapter.PodPrefixes) == 0 {
			c.facts.Adapter.PodPrefixes = n.PodPrefixes
		}
	}
	return c
}

func parseNode(t *testing.T, name string, fields []string) model.Node {
	t.Helper()
	n := model.Node{Name: name, UID: "uid-" + name, Ready: true, Spoken: true, Key: keyOf(name),
		Granularity: model.PerLocation, TunnelMTU: 1420}
	for _, f := range fields {
		k, v, _ := strings.Cut(f, "=")
		switch k {
		case "location":
			n.Location = v
		case "internal":
			n.InternalIPs = prefixes(v)
		case "pods":
			n.PodPrefixes = prefixes(v)
		case "wg":
			for _, a := range strings.Split(v, ",") {
				n.WireGuardIPs = append(n.WireGuardIPs, netip.MustParseAddr(a))
			}
		case "endpoint":
			n.Endpoint = parseEndpoint(v)
		case "epoch":
			e, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n.Epoch = e
		case "slot":
			n.Slot, _ = strconv.Atoi(v)
		case "next":
			n.Next = true
		case "mtu":
			n.TunnelMTU, _ = strconv.Atoi(v)
		case "keepalive":
			n.Keepalive, _ = time.ParseDuration(v)
		case "allowed":
			n.AllowedLocationIPs = prefixes(v)
		case "asked":
			n.Asked = v
		case "learned": // NAME@ADDR:PORT
			who, where, _ := strings.Cut(v, "@")
			if n.Discovered == nil {
				n.Discovered = map[model.Key]netip.AddrPort{}
			}
			n.Discovered[keyOf(who)] = netip.MustParseAddrPort(where)
		case "uid":
			n.UID = v
		case "silent":
			n.Silent = strings.Split(v, ",")
		case "granularity":
			n.Granularity = model.Granularity(v)
		case "leader":
			n.Leader = true
		case "forced":
			n.ForcedEndpoint = true
		case "notready":
			n.Ready = false
		case "nodesonly":
			n.NodesOnly = true
		case "unspoken":
			n.Spoken, n.Key, n.TunnelMTU = false, model.Key{}, 0
		default:
			t.Fatalf("node %s: unknown field %q", name, f)
		}
	}
	return n
}

func parsePeer(t *testing.T, name string, fields []string) model.Peer {
	t.Helper()
	p := model.Peer{Name: name, UID: "uid-" + name, Key: keyOf(name)}
	for _, f := range fields {
		k, v, _ := strings.Cut(f, "=")
		switch k {
		case "allowed":
			p.AllowedIPs = prefixes(v)
		case "endpoint":
			p.Endpoint = parseEndpoint(v)
		case "keepalive":
			p.Keepalive, _ = time.ParseDuration(v)
		case "to":
			p.Destinations = prefixes(v)
		case "named": // NAMESPACE/SERVICE@PREFIX,PREFIX
			who, where, _ := strings.Cut(v, "@")
			named := model.NamedDestination{}
			named.Namespace, named.Service, _ = strings.Cut(who, "/")
			if where != "" {
				named.Addresses = prefixes(where)
			}
			p.Named = append(p.Named, named)
		case "default":
			p.DefaultRoute = true
		case "seq":
			p.Seq, _ = strconv.ParseInt(v, 10, 64)
		case "psk":
			p.PresharedKey = model.NewPresharedKey(sha256.Sum256([]byte(v)))
		default:
			t.Fatalf("peer %s: unknown field %q", name, f)
		}
	}
	return p
}

func parseHop(t *testing.T, f []string) adapter.NextHop {
	t.Helper()
	h := adapter.NextHop{Prefix: netip.MustParsePrefix(f[0]), MTU: 1450}
	for i := 1; i < len(f); i++ {
		switch f[i] {
		case "via":
			h.Via = netip.MustParseAddr(f[i+1])
			i++
		case "dev":
			h.Device = f[i+1]
			i++
		case "mtu":
			h.MTU, _ = strconv.Atoi(f[i+1])
			i++
		case "onlink":
			h.OnLink = true
		default:
			t.Fatalf("hop: unknown word %q", f[i])
		}
	}
	return h
}

func parseEndpoint(s string) model.Endpoint {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return model.Endpoint{Addr: ap.Addr(), Port: ap.Port()}
	}
	// A name, or NAME=ADDR:PORT for one whose address is known.
	if name, at, known := strings.Cut(s, "="); known {
		ap := netip.MustParseAddrPort(at)
		return model.Endpoint{Host: name, Addr: ap.Addr(), Port: ap.Port()}
	}
	host, port, _ := strings.Cut(s, ":")
	n, _ := strconv.Atoi(port)
	return model.Endpoint{Host: host, Port: uint16(n)}
}

func prefixes(s string) (out []netip.Prefix) {
	for _, p := range strings.Split(s, ",") {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func keyOf(name string) model.Key { return model.Key(sha256.Sum256([]byte("key of " + name))) }
