package scenario

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// TC45: a gateway and a member have a FORWARD chain that drops: Docker's or ufw's way,
// or a table of somebody's own. The mesh says so and touches nothing; asked to,
// it puts its accept into the chain, and everybody reaches everybody; it keeps it
// there, and after kg uninstall the ruleset is what it was.
func TestForeignForwardChainThatDrops(t *testing.T) {
	l := upWith(t, lab.Options{Name: labName(t), HoldAgents: true}, lab.Default())
	dropping := []*lab.Machine{l.Machine("a1"), l.Machine("a3")}
	everybody := append(l.PodPlaces(), l.NodePlaces()...)
	on := func(t *testing.T, script string) {
		t.Helper()
		for _, n := range dropping {
			must(n.Shell(t.Context(), script))(t)
		}
	}
	for _, c := range []struct{ name, drop, chain, flush, undo string }{
		{"iptables-legacy", "iptables-legacy -P FORWARD DROP", "chain FORWARD of table filter of iptables-legacy",
			"iptables-legacy -F FORWARD", "iptables-legacy -P FORWARD ACCEPT"},
		{"nft", "nft 'table inet strict { chain transit { type filter hook forward priority 10; policy drop; ct state invalid drop; }; }'",
			"chain transit of nftables table inet strict", "nft flush chain inet strict transit; nft add rule inet strict transit ct state invalid drop", "nft delete table inet strict"},
		// Flannel's own accepts are here, which let pods pass and nodes not.
		{"iptables-nft", "iptables-nft -P FORWARD DROP", "chain FORWARD of nftables table ip filter",
			"nft -a list chain ip filter FORWARD | sed -n 's/.*kilo: .*handle /nft delete rule ip filter FORWARD handle /p' | sh", "iptables-nft -P FORWARD ACCEPT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "nft" { // core/agent tries that in a namespace
				onRequest(t)
			}
			on(t, c.drop)
			before := map[string]lab.NetState{}
			for _, n := range dropping {
				before[n.Name] = must(n.NetState(t.Context()))(t)
			}

			// By default: said, and left alone.
			ok(t, l.StartAgents(t.Context()))
			for _, n := range l.Agents() {
				eventually(t, soon, func() error { _, err := n.AgentGet(t.Context(), "/readyz"); return err })
			}
			for _, n := range dropping {
				eventually(t, soon, warns(t, n, "ForwardDrop", c.chain, "--iptables-forward-rules"))
				if diff := before[n.Name].Diff(withoutOurs(must(n.NetState(t.Context()))(t))); diff != "" {
					t.Errorf("%s, beside what is ours:\n%s", n.Name, diff)
				}
			}
			if text := must(l.Machine("b1").AgentGet(t.Context(), "/status"))(t); strings.Contains(text, "ForwardDrop") {
				t.Errorf("b1 has no such chain, and says: %s", text)
			}
			broken := must(lab.Reach(t.Context(), everybody, everybody))(t)
			if broken.OK() {
				t.Error("everybody reaches everybody: the chain drops nothing")
			}
			t.Logf("by default %s", broken.Summary())

			// Asked to.
			for _, n := range dropping {
				ok(t, n.RestartAgent(t.Context(), "--iptables-forward-rules"))
			}
			whole(t, l, soon)
			reachAll(t, l, 42, 56)
			for _, n := range dropping {
				must(n.Shell(t.Context(), c.flush))(t)
				eventually(t, soon, func() error {
					_, err := n.Shell(t.Context(), "{ nft list ruleset; iptables-legacy-save; } | grep -q 'kilo: traffic of the mesh'")
					return err
				})
				text := must(n.AgentGet(t.Context(), "/status"))(t)
				if strings.Contains(text, "ForwardDrop") || strings.Contains(text, "ForwardRules") {
					t.Errorf("%s still complains: %s", n.Name, text)
				}
				if undo := must(n.Shell(t.Context(), "cat /var/lib/kilo/undo.json"))(t); !strings.Contains(undo, `"forwardAccepts"`) {
					t.Errorf("%s recorded %s", n.Name, undo)
				}
			}

			// As it was.
			for _, n := range l.Agents() {
				ok(t, n.UninstallAgent(t.Context()))
			}
			for _, n := range dropping {
				if diff := before[n.Name].Diff(must(n.NetState(t.Context()))(t)); diff != "" {
					t.Errorf("%s, before the agent came and after it went:\n%s", n.Name, diff)
				}
			}
			on(t, c.undo)
		})
	}
}

// warns is a check for eventually: the machine's agent warns of that kind, in a
// message with all of these parts.
func warns(t *testing.T, n *lab.Machine, kind string, parts ...string) func() error {
	return func() error {
		s, err := n.AgentStatus(t.Context())
		if err != nil {
			return err
		}
		for _, raw := range s.Warnings {
			var w struct{ Kind, Message string }
			if json.Unmarshal(raw, &w) == nil && w.Kind == kind && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(w.Message, p) }) {
				return nil
			}
		}
		return fmt.Errorf("%s does not warn of %s (%q); its warnings: %s", n.Name, kind, parts, s.Warnings)
	}
}
