package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// kgctl plans for itself. What it prints is what the nodes' devices hold.
func kgctlShowsWhatIsThere(t *testing.T, l *lab.Lab) {
	kgctl := kgctl(t, l)
	for _, n := range l.Agents() {
		printed := peersOf(kgctl("showconf", "node", n.Name))
		// The device's endpoints roam, so they are compared elsewhere.
		held := peersOf(must(n.Exec(t.Context(), "/usr/bin/wg", "showconf", "kilo0"))(t))
		if !maps.Equal(printed, held) {
			t.Errorf("%s:\nkgctl prints\n%v\nits device holds\n%v", n.Name, printed, held)
		}
		want := 0
		if s := must(n.AgentStatus(t.Context()))(t); s.Role == "gateway" {
			want = 3 // a, b, c and cp, but its own
		}
		if len(held) != want {
			t.Errorf("%s has %d peers, want %d", n.Name, len(held), want)
		}
	}

	graph := kgctl("graph")
	drawn := must(l.Machine("cp").Shell(t.Context(), "dot -Tplain <<'EOF'\n"+graph+"\nEOF"))(t)
	for _, n := range l.Nodes() {
		if !strings.Contains(drawn, "\nnode "+n.Name+" ") {
			t.Errorf("dot draws no node %s:\n%s", n.Name, graph)
		}
	}
}

// What kgctl shows of the live mesh is what the agents say, asked directly and, where
// they are pods, through the API server.
func kgctlShowsTheLiveMesh(t *testing.T, l *lab.Lab) {
	kgctl := kgctl(t, l)
	type view struct {
		Nodes  []struct{ Name, Role, Tunnel string }
		Links  []struct{ Node, To, LastHandshake string }
		Silent []struct{ Node, Why string }
	}
	look := func(args ...string) (v view) {
		t.Helper()
		ok(t, json.Unmarshal([]byte(kgctl(append([]string{"status", "-o", "json"}, args...)...)), &v))
		return v
	}
	eventually(t, soon, func() error {
		v := look("--direct")
		if len(v.Silent) > 0 || len(v.Nodes) != len(l.Agents()) {
			return fmt.Errorf("%d nodes, silent: %v", len(v.Nodes), v.Silent)
		}
		for _, n := range v.Nodes {
			if said := must(l.Machine(n.Name).AgentStatus(t.Context()))(t); said.Role != n.Role {
				return fmt.Errorf("%s is %s, kgctl says %s", n.Name, said.Role, n.Role)
			}
		}
		for _, link := range v.Links {
			if link.LastHandshake == "" {
				return fmt.Errorf("no handshake between %s and %s", link.Node, link.To)
			}
		}
		if len(v.Links) != 4*3 {
			return fmt.Errorf("%d links, want 12", len(v.Links))
		}
		return nil
	})

	apply(t, l, `
apiVersion: v1
kind: Pod
metadata: {name: kilo-a1, namespace: kube-system, labels: {app.kubernetes.io/name: kilo}}
spec: {nodeName: a1, hostNetwork: true, automountServiceAccountToken: false, containers: [{name: kg, image: kilo}]}
`)
	must(l.Kubectl(t.Context(), "patch", "pod", "--namespace=kube-system", "kilo-a1", "--subresource=status", "--type=merge",
		"--patch", fmt.Sprintf(`{"status":{"phase":"Running","podIP":"%[1]s","podIPs":[{"ip":"%[1]s"}]}}`, l.Machine("a1").Addr)))(t)
	t.Cleanup(func() {
		_, _ = l.Kubectl(context.Background(), "delete", "pod", "--namespace=kube-system", "kilo-a1", "--force", "--grace-period=0")
	})
	v := look()
	if len(v.Silent) != len(l.Agents())-1 || slices.ContainsFunc(v.Silent, func(s struct{ Node, Why string }) bool { return s.Node == "a1" }) || len(v.Links) != 3 {
		t.Errorf("by the pod proxy: links %v, silent %v", v.Links, v.Silent)
	}

	path := kgctl("explain", l.Pod("a3").Addr.String(), l.Pod("b2").Addr.String())
	for _, want := range []string{"node/a3 (member): by the host CNI to node/", "through the tunnel to node/b1", "node/b1 (gateway): by the host CNI to node/b2", "node/a3 (member): is there"} {
		if !strings.Contains(path, want) {
			t.Errorf("no %q in\n%s", want, path)
		}
	}
}

// peersOf reads a WireGuard configuration: public key to what the peer has
// beside its endpoint.
func peersOf(config string) map[string]string {
	peers := map[string]string{}
	for _, section := range strings.Split(config, "[Peer]")[1:] {
		var key, allowed, rest string
		for line := range strings.Lines(section) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
			switch name {
			case "PublicKey":
				key = value
			case "AllowedIPs":
				prefixes := strings.Split(value, ", ")
				slices.Sort(prefixes)
				allowed = strings.Join(prefixes, ", ")
			case "PersistentKeepalive", "PresharedKey":
				rest += fmt.Sprintf(" %s=%s", name, value)
			}
		}
		peers[key] = allowed + rest
	}
	return peers
}
