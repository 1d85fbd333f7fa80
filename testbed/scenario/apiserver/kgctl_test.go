package apiserver_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
)

// kgctl builds the tool and returns a way to run it as admin: what it prints, what
// it complains, and its exit code.
func (s *server) kgctl() func(args ...string) (out, complaints string, code int) {
	s.t.Helper()
	binary := filepath.Join(s.dir, "kgctl")
	if out, err := exec.CommandContext(s.t.Context(), "go", "build", "-o", binary, "../../../cmd/kgctl").CombinedOutput(); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	config := `{apiVersion: v1, kind: Config, current-context: nowhere,
clusters: [{name: here, cluster: {server: "` + s.config("").Host + `", insecure-skip-tls-verify: true}}, {name: nowhere, cluster: {server: "https://192.0.2.1"}}],
users: [{name: admin, user: {token: ` + adminToken + `}}],
contexts: [{name: here, context: {cluster: here, user: admin}}, {name: nowhere, context: {cluster: nowhere, user: admin}}]}
`
	s.file("kubeconfig", config)
	return func(args ...string) (string, string, int) {
		s.t.Helper()
		cmd := exec.CommandContext(s.t.Context(), binary, append([]string{"--kubeconfig", filepath.Join(s.dir, "kubeconfig"), "--context", "here"}, args...)...)
		var out, complaints strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &complaints
		_ = cmd.Run()
		return out.String(), complaints.String(), cmd.ProcessState.ExitCode()
	}
}

// A person lets a laptop in, looks, and shows it the door; another cluster gets a
// location as a Peer. What is printed goes through kubectl and wg-quick.
func TestKgctlPeers(t *testing.T) {
	s := start(t)
	s.apply("rbac.yaml")
	s.apply("crds.yaml")
	s.kubectl("", "wait", "--for=condition=Established", "crd/peers.kilo.squat.ai")
	s.node(t.Context(), "e1", "10.0.0.1", nil)
	c, _ := agent(s, "e1", t.TempDir())
	sees(s, c, true, "the node", func(s model.Snapshot, _ []model.Warning) bool { return len(s.Nodes) == 1 })
	said := published()
	if err := c.Publish(t.Context(), said); err != nil {
		t.Fatal(err)
	}
	kgctl := s.kgctl()
	run := func(args ...string) string {
		t.Helper()
		out, complaints, code := kgctl(args...)
		if code != 0 {
			t.Fatalf("kgctl %v: exit code %d\n%s\n%s", args, code, out, complaints)
		}
		return out
	}

	keyFile := filepath.Join(s.dir, "laptop.key")
	config := run("peer", "add", "laptop", "--private-key", keyFile, "--expires", "8h", "--to", "10.96.0.10,10.244.0.0/16", "--preshared-key")
	private, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(keyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
	for _, want := range []string{"PrivateKey = " + strings.TrimSpace(string(private)), "Address = 10.5.0.1/32", "PublicKey = " + said.Key.String(), "PresharedKey = ", "Endpoint = 198.51.100.1:51820"} {
		if !strings.Contains(config, want) {
			t.Errorf("no %q in\n%s", want, config)
		}
	}
	s.file("kilo.conf", config)
	if out, err := exec.Command("wg-quick", "strip", filepath.Join(s.dir, "kilo.conf")).CombinedOutput(); err != nil {
		t.Errorf("wg-quick: %v\n%s", err, out)
	}
	sees(s, c, true, "the laptop", func(s model.Snapshot, _ []model.Warning) bool {
		if len(s.Peers) != 1 {
			return false
		}
		p := s.Peers[0]
		return !p.ExpiresAt.IsZero() && len(p.Destinations) == 2 && !p.PresharedKey.IsZero() && p.AllowedIPs[0] == netip.MustParsePrefix("10.5.0.1/32")
	})
	if stored := s.kubectl("", "get", "peer", "laptop", "--output=yaml"); strings.Contains(stored, strings.TrimSpace(string(private))) {
		t.Error("the private key left this machine")
	}
	if phone := run("peer", "add", "phone"); !strings.Contains(phone, "Address = 10.5.0.2/32") {
		t.Errorf("the next address is 10.5.0.2:\n%s", phone)
	}
	for args, says := range map[string]string{
		"peer add laptop": "there is a Peer laptop already",
		"peer add thief --allowed-ips 10.244.1.0/25": "overlaps 10.244.1.0/24, pods of node e1",
		"peer add odd --endpoint home":               "spec.endpoint",
		"peer rm nobody":                             "there is no Peer nobody",
	} {
		if out, complaints, code := kgctl(strings.Fields(args)...); code != 1 || !strings.Contains(complaints, says) || out != "" {
			t.Errorf("kgctl %s: exit code %d\n%s\n%s\nwant it to say %q", args, code, out, complaints, says)
		}
	}
	if got := s.kubectl("", "get", "peers", "--output=name"); strings.Contains(got, "thief") || strings.Contains(got, "odd") {
		t.Errorf("stored all the same: %s", got)
	}

	table := run("peer", "list")
	if !strings.Contains(table, "laptop") || !strings.Contains(table, "in 8h") && !strings.Contains(table, "in 7h") {
		t.Errorf("kgctl peer list:\n%s", table)
	}
	var list struct {
		Items []struct{ Spec struct{ PresharedKey string } }
	}
	if err := json.Unmarshal([]byte(run("peer", "list", "-o", "json")), &list); err != nil || len(list.Items) != 2 || list.Items[0].Spec.PresharedKey != "(secret)" {
		t.Errorf("as JSON: %+v, %v", list, err)
	}

	// For the other cluster, by each form.
	for _, form := range []string{"yaml", "json"} {
		s.kubectl(run("showconf", "node", "e1", "--as-peer", "-o", form, "--allowed-ips", "10.96.0.0/12"), "apply", "--dry-run=server", "--filename=-")
		s.kubectl(run("showconf", "peer", "laptop", "-o", form), "apply", "--dry-run=server", "--filename=-")
		s.kubectl(run("showconf", "peer", "laptop", "--as-peer", "-o", form), "apply", "--dry-run=server", "--filename=-")
	}

	// A wish for another gateway reaches the node; no agent is here to follow it.
	s.node(t.Context(), "e2", "10.0.0.2", nil)
	second, _ := agent(s, "e2", t.TempDir())
	sees(s, second, true, "both nodes", func(s model.Snapshot, _ []model.Warning) bool { return len(s.Nodes) == 2 })
	said.Key, said.Epoch, said.WireGuardIPs, said.PodPrefixes = model.Key{2}, 0, nil, nil
	said.InternalIPs = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}
	if err := second.Publish(t.Context(), said); err != nil {
		t.Fatal(err)
	}
	if _, complaints, code := kgctl("gateway", "set", "east", "e2", "--timeout", "5s"); code != 1 || !strings.Contains(complaints, "does not yet; e1 does") {
		t.Errorf("gateway set: exit code %d, %s", code, complaints)
	}
	if got := s.kubectl("", "get", "node", "e2", "--output=jsonpath={.metadata.annotations['kilo\\.squat\\.ai/leader']}"); got != "true" {
		t.Errorf("node e2 carries leader=%q", got)
	}
	if _, complaints, code := kgctl("gateway", "set", "east", "e1"); code != 0 || !strings.Contains(complaints, "already") {
		t.Errorf("gateway set: exit code %d, %s", code, complaints)
	}

	run("peer", "rm", "laptop")
	sees(s, c, true, "the phone alone", func(s model.Snapshot, _ []model.Warning) bool { return peerNames(s) == "phone" })
	if out, _, code := kgctl("--context", "nowhere-else", "peer", "list"); code != 1 || out != "" {
		t.Errorf("with a context that is not there: exit code %d", code)
	}
}
