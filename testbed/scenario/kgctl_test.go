package scenario

import (
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
