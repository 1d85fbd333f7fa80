package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image/png"
	"io"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/render"
	"github.com/kilo-overlay/kilo/core/report"
	"github.com/kilo-overlay/kilo/core/state"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// mesh is east with a gateway, known by a name, and a member; west with a node
// that has only its public address; and a laptop.
func mesh() model.Snapshot {
	key := func(id byte) (k model.Key) {
		for i := range k {
			k[i] = id
		}
		return k
	}
	p := netip.MustParsePrefix
	return model.Snapshot{
		Nodes: []model.Node{
			{
				Name: "e1", UID: "1", Ready: true, Spoken: true, Location: "east", Key: key(1), Epoch: 1,
				Endpoint:    model.Endpoint{Host: "east.example.com", Port: 51820},
				InternalIPs: []netip.Prefix{p("198.51.100.1/32")}, PodPrefixes: []netip.Prefix{p("10.244.1.0/24")},
				WireGuardIPs: []netip.Addr{netip.MustParseAddr("10.4.0.1")}, Granularity: model.PerLocation,
			},
			{
				Name: "e2", UID: "2", Ready: true, Spoken: true, Location: "east", Key: key(2),
				InternalIPs: []netip.Prefix{p("10.0.0.2/24")}, PodPrefixes: []netip.Prefix{p("10.244.2.0/24")},
			},
		},
		Peers: []model.Peer{{
			Name: "laptop", UID: "9", Key: key(9), PresharedKey: model.NewPresharedKey(key(88)),
			AllowedIPs: []netip.Prefix{p("10.5.0.1/32")}, Keepalive: 10 * time.Second,
		}},
		WireGuardSubnets: []netip.Prefix{p("10.4.0.0/16")},
	}
}

// kgctl runs a command line on a cluster.
func kgctl(s model.Snapshot, line string) (code int, out, complaints string) {
	var o, e bytes.Buffer
	clock := time.Now()
	p := program{
		in: strings.NewReader(""), out: &o, err: &e,
		now:   func() time.Time { return clock },
		pause: func(_ context.Context, d time.Duration) error { clock = clock.Add(d); return nil },
		load: func(context.Context, *options) (model.Snapshot, []model.Warning, error) {
			return s, []model.Warning{{Kind: "BadPeer", Object: "peer/odd", Message: "spec.publicKey: not a key"}}, nil
		},
		ask: func(_ context.Context, _ *options, nodes []model.Node) (out []answer, err error) {
			for _, n := range nodes {
				a := answer{node: n.Name, err: errors.New("connection refused")}
				if n.Name == "e1" {
					a.status, a.err = &report.Status{Ready: true}, nil
				}
				out = append(out, a)
			}
			return out, nil
		},
		resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			if name == "east.example.com" {
				return []netip.Addr{netip.MustParseAddr("198.51.100.1")}, nil
			}
			return nil, errors.New("no such name")
		},
	}
	code = p.run(context.Background(), strings.Fields(line))
	return code, o.String(), e.String()
}

func TestExitCodes(t *testing.T) {
	full := mesh()
	full.Nodes[0].Granularity = model.Full
	elsewhere := mesh()
	elsewhere.Nodes[0].WireGuardIPs = []netip.Addr{netip.MustParseAddr("10.8.0.1")}

	for _, c := range []struct {
		line string
		mesh model.Snapshot
		code int
		says string // on either stream
	}{
		{"", mesh(), 0, "Available Commands:"},
		{"--help", mesh(), 0, "Available Commands:"},
		{"graph --help", mesh(), 0, "kgctl graph | dot -Tsvg"},
		{"showconf node -h", mesh(), 0, "kgctl showconf node e1 --as-peer"},
		{"help graph", mesh(), 0, "kgctl graph | dot -Tsvg"},
		{"showconf peer -h", mesh(), 0, "kgctl showconf peer laptop"},
		{"graph", mesh(), 0, "digraph kilo"},
		{"version", mesh(), 0, "kgctl "},
		{"showconf node e1", mesh(), 0, "[Interface]"},
		{"--port 4000 showconf node e1", mesh(), 0, "ListenPort = 4000"},
		{"showconf node e2", mesh(), 0, "e2 is not the gateway"},

		{"showconf node e9", mesh(), 1, `no node "e9"`},
		{"showconf peer phone", mesh(), 1, `no valid Peer "phone"`},
		{"graph", full, 0, "digraph"},
		{"--mesh-granularity=location graph", full, 0, "digraph"},
		{"graph", elsewhere, 1, "give --subnet"},

		{"show", mesh(), 2, `"show" is no command of kgctl`},
		{"showconf", mesh(), 2, "A command is missing"},
		{"showconf nod e1", mesh(), 2, `"nod" is no command of kgctl showconf`},
		{"showconf node", mesh(), 2, "takes one argument, NAME, got 0"},
		{"showconf node e1 e2", mesh(), 2, "takes one argument, NAME, got 2"},
		{"graph e1", mesh(), 2, `takes no argument, got "e1"`},
		{"graph --as-peer", mesh(), 2, "unknown flag: --as-peer"},
		{"graph --no-such-flag", mesh(), 2, "no-such-flag"},
		{"showconf node e1 -o yaml", mesh(), 0, "kind: List"},
		{"showconf node e1 --as-peer -o qr", mesh(), 2, "does not go with --as-peer"},
		{"showconf node e1 --private-key k", mesh(), 2, "--private-key needs"},
		{"showconf peer laptop -o wg-quick --private-key /nowhere/key", mesh(), 1, "/nowhere/key"},
		{"graph -o svg", mesh(), 0, "<svg "},
		{"graph -o pdf", mesh(), 2, "--output=pdf"},
		{"explain 10.244.1.5 10.244.2.5", mesh(), 0, "by the host CNI to node/e2"},
		{"explain 10.244.1.5 nobody", mesh(), 2, `"nobody" is not an IP address`},
		{"explain 10.244.1.5", mesh(), 2, "takes 2 arguments, SRC and DST, got 1"},
		{"status", mesh(), 0, "e2: connection refused"},
		{"nodes -o json", mesh(), 0, `"role": "gateway"`},
		{"peers", mesh(), 0, "laptop"},
		{"peer", mesh(), 2, "A command is missing"},
		{"check", mesh(), 3, "AgentSilent  node/e2"},
		{"cluster", mesh(), 2, "A command is missing"},
		{"cluster link", mesh(), 2, "which other cluster?"},
		{"cluster link --share pods,cats --to-context x", mesh(), 2, `"cats" is nothing that a cluster has`},
		{"cluster unlink dr --to-context x", mesh(), 2, "NAME is for one cluster alone"},
		{"peer add", mesh(), 2, "takes one argument, NAME, got 0"},
		{"peer add x --pool here", mesh(), 2, "--pool=here"},
		{"completion bash", mesh(), 0, "bash completion V2 for kgctl"},
		{"grap", mesh(), 2, "did you mean graph?"},
		{"showconf node e1 --allowed-ips 10.0.0.0/8", mesh(), 2, "--allowed-ips needs --as-peer"},
		{"showconf node e1 --as-peer --allowed-ips 10.0.0", mesh(), 2, `"10.0.0" is not a prefix`},
		{"showconf node e1 --as-peer -o toml", mesh(), 2, "--output=toml"},
		{"graph --backend=etcd", mesh(), 2, "--backend=etcd"},
		{"graph --mesh-granularity=cross", mesh(), 0, "digraph"},
		{"graph --mesh-granularity=half", mesh(), 2, "possible values"},
		{"graph --port=0", mesh(), 2, "--port=0"},
		{"graph --port=70000", mesh(), 2, "port"},
		{"graph --subnet=10.4.0.0/16,10.5.0.0/16", mesh(), 2, "one of each family"},
	} {
		t.Run(c.line, func(t *testing.T) {
			code, out, complaints := kgctl(c.mesh, c.line)
			if code != c.code || !strings.Contains(out+complaints, c.says) {
				t.Errorf("exit code %d, want %d and %q in\n%s%s", code, c.code, c.says, out, complaints)
			}
			if code != 0 && code != exitFinding && out != "" {
				t.Errorf("printed in spite of an error:\n%s", out)
			}
		})
	}
}

// Without a kubeconfig it is said which one was looked for, and nothing of variables
// that lead elsewhere.
func TestNoKubeconfig(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct{ env, line, says string }{
		{filepath.Join(dir, "none"), "status", "There is no kubeconfig: " + filepath.Join(dir, "none") + " is not there"},
		{empty, "status", "The kubeconfig " + empty + " names none"},
		{"", "status --kubeconfig " + empty, "--kubeconfig=" + empty + " names no cluster"},
		{"", "status --kubeconfig " + filepath.Join(dir, "none"), "no such file or directory"},
		{"", "cluster link --to-kubeconfig " + empty + " --kubeconfig " + empty, "the first cluster: no way to the API server"},
	} {
		t.Setenv("KUBECONFIG", c.env)
		var o, e bytes.Buffer
		p := program{in: strings.NewReader(""), out: &o, err: &e, load: loadCluster, ask: askAgents, resolve: lookUp, now: time.Now, pause: pause}
		code := p.run(context.Background(), strings.Fields(c.line))
		if code != exitError || !strings.Contains(e.String(), c.says) || strings.Contains(e.String(), "KUBERNETES_MASTER") {
			t.Errorf("KUBECONFIG=%s kgctl %s: exit code %d, %s\nwant %q", c.env, c.line, code, e.String(), c.says)
		}
	}
}

// What is wrong in the cluster, and what was left out, is told beside the
// output, so that a file holds none of it.
func TestWarningsGoToTheErrorStream(t *testing.T) {
	s := mesh()
	s.Nodes[0].Endpoint = model.Endpoint{}
	code, out, complaints := kgctl(s, "showconf peer laptop")
	if code != 0 || strings.Contains(out, "BadPeer") || !strings.Contains(complaints, "kgctl: warning: BadPeer peer/odd: ") {
		t.Errorf("exit code %d, output:\n%s\nerror stream:\n%s", code, out, complaints)
	}
	if !strings.Contains(complaints, `location "east" is left out`) || !strings.Contains(out, `# location "east" is left out`) {
		t.Errorf("nothing says that east was left out:\n%s\n%s", out, complaints)
	}
}

// An endpoint that is given by name is shown by name, and its address is kept
// out of the tunnel all the same.
func TestEndpointNames(t *testing.T) {
	_, out, _ := kgctl(mesh(), "showconf peer laptop")
	if !strings.Contains(out, "Endpoint = east.example.com:51820\n") || strings.Contains(out, "198.51.100.1") {
		t.Errorf("want the name and not the address:\n%s", out)
	}
	s := mesh()
	s.Nodes[0].Endpoint.Host = "gone.example.com"
	_, out, complaints := kgctl(s, "showconf peer laptop")
	if !strings.Contains(complaints, "gone.example.com:51820 of node e1 does not resolve here") {
		t.Errorf("nothing says that the name does not resolve:\n%s\n%s", out, complaints)
	}
}

// A Peer that was printed is a Peer to the parser of Peers, the same one.
func TestPeerResources(t *testing.T) {
	for _, format := range []string{"yaml", "json"} {
		code, out, complaints := kgctl(mesh(), "showconf peer laptop --as-peer -o "+format)
		if code != 0 {
			t.Fatalf("%s: exit code %d: %s", format, code, complaints)
		}
		peer := parsePeer(t, out)
		want := mesh().Peers[0]
		if peer.Name != want.Name || peer.Key != want.Key || peer.PresharedKey.Bytes() != want.PresharedKey.Bytes() ||
			peer.Keepalive != want.Keepalive || !peer.Endpoint.IsZero() || len(peer.AllowedIPs) != 1 || peer.AllowedIPs[0] != want.AllowedIPs[0] {
			t.Errorf("%s: printed\n%s\nwhich is %+v, want %+v", format, out, peer, want)
		}
	}
	_, out, _ := kgctl(mesh(), "showconf node e2 --as-peer -o yaml --allowed-ips 10.96.0.0/12")
	const want = `apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata:
  name: e2
spec:
  allowedIPs:
  - 10.0.0.2/32
  - 10.4.0.1/32
  - 10.96.0.0/12
  - 10.244.1.0/24
  - 10.244.2.0/24
  endpoint:
    dnsOrIP:
      dns: east.example.com
    port: 51820
  publicKey: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func parsePeer(t *testing.T, text string) model.Peer {
	t.Helper()
	object, err := yaml.YAMLToJSON([]byte(text)) // JSON is YAML too
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	var p api.Peer
	if err := json.Unmarshal(object, &p); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if p.Kind != "Peer" || p.APIVersion != "kilo.squat.ai/v1alpha1" {
		t.Errorf("kind %q of %q", p.Kind, p.APIVersion)
	}
	peer, err := cluster.ParsePeer(p)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return peer
}

// What is found once and then no more is nothing: agents that start, gateways that
// change. What lasts is told as it is now; notes alone are no failure.
func TestCheckLooksAgain(t *testing.T) {
	waiting, well := &report.Status{Waiting: []string{"for its Node"}}, &report.Status{Ready: true}
	noted := &report.Status{Ready: true, Warnings: []model.Warning{{Kind: "NoCommonSubnet", Object: "node/e1", Message: "it could be faster", Note: true}}}
	for _, c := range []struct {
		what  string
		looks []*report.Status
		line  string
		code  int
		says  string
		took  time.Duration
	}{
		{"well", []*report.Status{well}, "check", 0, "nothing is wrong", 0},
		{"it has just started", []*report.Status{waiting, waiting, well}, "check", 0, "nothing is wrong", 4 * time.Second},
		{"it waits", []*report.Status{waiting}, "check", 3, "AgentWaits  node/e1", 10 * time.Second},
		{"it waits now and then", []*report.Status{waiting, well, waiting}, "check", 0, "nothing is wrong", 2 * time.Second},
		{"nobody asks twice", []*report.Status{waiting, well}, "check --settle 0s", 3, "AgentWaits  node/e1", 0},
		{"a note", []*report.Status{noted}, "check", 0, "(a note: nothing is broken)", 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			var o, e bytes.Buffer
			began := time.Now()
			clock, looks := began, 0
			s := mesh()
			s.Nodes = s.Nodes[:1]
			p := program{
				out: &o, err: &e,
				now:   func() time.Time { return clock },
				pause: func(_ context.Context, d time.Duration) error { clock = clock.Add(d); return nil },
				load:  func(context.Context, *options) (model.Snapshot, []model.Warning, error) { return s, nil, nil },
				ask: func(context.Context, *options, []model.Node) ([]answer, error) {
					looks++
					return []answer{{node: "e1", status: c.looks[min(looks, len(c.looks))-1]}}, nil
				},
				resolve: func(context.Context, string) ([]netip.Addr, error) {
					return []netip.Addr{netip.MustParseAddr("198.51.100.1")}, nil
				},
			}
			code := p.run(context.Background(), strings.Fields(c.line))
			if code != c.code || !strings.Contains(o.String(), c.says) || clock.Sub(began) != c.took {
				t.Errorf("exit code %d after %s, want %d after %s, and %q in\n%s%s", code, clock.Sub(began), c.code, c.took, c.says, o.String(), e.String())
			}
		})
	}
}

// Every command explains itself, and shows how it is used.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.HasParent() && !c.HasSubCommands() && (c.Example == "" || c.Long == "") {
			t.Errorf("%s has no example or no explanation", c.CommandPath())
		}
		for _, part := range c.Commands() {
			walk(part)
		}
	}
	walk(rootCommand(&program{}))
}

// A whole interface has its key only where that is the one that the cluster knows.
func TestPrivateKeys(t *testing.T) {
	private := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0x42}, 32))
	public, err := publicKey(private)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(private+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	line := "showconf peer laptop -o wg-quick --private-key " + file
	s := mesh()
	code, out, complaints := kgctl(s, line)
	if code != 1 || out != "" || !strings.Contains(complaints, "it is the key of somebody else") || strings.Contains(complaints, private) {
		t.Errorf("with another's key: exit code %d\n%s\n%s", code, out, complaints)
	}
	s.Peers[0].Key = public
	code, out, complaints = kgctl(s, line)
	if code != 0 || !strings.HasPrefix(out, "[Interface]\nPrivateKey = "+private+"\nAddress = 10.5.0.1/32\n") {
		t.Errorf("exit code %d\n%s\n%s", code, out, complaints)
	}
	code, out, _ = kgctl(s, "showconf peer laptop -o qr --private-key "+file)
	if code != 0 || !strings.Contains(out, "█") || strings.Contains(out, private) {
		t.Errorf("exit code %d, QR code:\n%s", code, out)
	}
}

// The first address that nobody has: not the cluster's, not a Peer's, be it one
// that is not served.
func TestFreeAddress(t *testing.T) {
	s := mesh()
	s.Nodes[0].AllowedLocationIPs = []netip.Prefix{netip.MustParsePrefix("10.5.0.2/31")}
	stored := []api.Peer{
		{Spec: api.PeerSpec{AllowedIPs: []string{"10.5.0.1/32"}}},
		{Spec: api.PeerSpec{AllowedIPs: []string{"10.5.0.4/32", "bad", "0.0.0.0/0"}}},
	}
	got, err := freeAddress(netip.MustParsePrefix("10.5.0.0/29"), s, stored)
	if err != nil || got != netip.MustParseAddr("10.5.0.5") {
		t.Errorf("got %v, %v", got, err)
	}
	for _, full := range []string{"10.5.0.0/30", "10.5.0.4/32", "10.4.0.0/24"} {
		if got, err := freeAddress(netip.MustParsePrefix(full), s, stored); err == nil {
			t.Errorf("%s has a free address: %v", full, got)
		}
	}
}

// What is drawn is a picture, of the size that the drawing has.
func TestPNG(t *testing.T) {
	code, out, complaints := kgctl(mesh(), "graph -o png")
	if code != 0 {
		t.Fatal(complaints)
	}
	picture, err := png.Decode(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	d := render.Draw(mesh())
	if size := picture.Bounds().Size(); size.X != d.Width || size.Y != d.Height {
		t.Errorf("size %v, want %d×%d", size, d.Width, d.Height)
	}
	box := d.Boxes[0]
	if r, _, _, _ := picture.At(box.X, box.Y+box.H/2).RGBA(); r>>8 != 0x33 {
		t.Errorf("no border at the left of %s: %v", box.ID, picture.At(box.X, box.Y+box.H/2))
	}
}

// A bug report holds no secret, and what a maintainer plans with it is what the
// agents planned.
func TestBugreport(t *testing.T) {
	s := mesh()
	code, out, complaints := kgctl(s, "bugreport --file -")
	if code != 0 {
		t.Fatal(complaints)
	}
	z, err := gzip.NewReader(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[path.Base(h.Name)], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
	psk := model.Key(s.Peers[0].PresharedKey.Bytes()).String()
	for name, text := range files {
		if len(text) == 0 || bytes.Contains(text, []byte(psk)) {
			t.Errorf("%s is empty, or shows a preshared key", name)
		}
	}
	var again model.Snapshot
	if err := json.Unmarshal(files["snapshot.json"], &again); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		facts := plan.Facts{Self: n.Name, Interface: "kilo0", Port: 51820, Key: n.Key, TunnelMTU: 1420, AdapterKnown: true}
		want, _ := plan.Plan(s, facts, nil)
		got, _ := plan.Plan(again, facts, nil)
		for _, state := range []*state.State{&want, &got} {
			for i := range state.Links {
				for j := range state.Links[i].Tunnel.Peers {
					state.Links[i].Tunnel.Peers[j].PresharedKey = model.PresharedKey{} // that is left out
				}
			}
		}
		if want.String() != got.String() {
			t.Errorf("%s plans\n%s\nand with the report\n%s", n.Name, want, got)
		}
	}
	for name, says := range map[string]string{"status.txt": "DID NOT ANSWER", "findings.json": "AgentSilent", "agents.json": `"e1"`, "silent.json": "connection refused", "about.json": "kgctl", "mesh.svg": "<svg "} {
		if !bytes.Contains(files[name], []byte(says)) {
			t.Errorf("%s does not say %q:\n%s", name, says, files[name])
		}
	}
}
