package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// node reads a Node object.
func node(t *testing.T, l *lab.Lab, name string) corev1.Node {
	t.Helper()
	var n corev1.Node
	out := must(l.Kubectl(t.Context(), "get", "node", name, "--output=json"))(t)
	ok(t, json.Unmarshal([]byte(out), &n))
	return n
}

// annotation is one of a Node's, "" if it has none of that name.
func annotation(t *testing.T, l *lab.Lab, name, key string) string {
	t.Helper()
	return node(t, l, name).Annotations[key]
}

// wg is what `wg show kilo0 WHAT` prints on a node, by the peer's public key.
func wg(t *testing.T, l *lab.Lab, node, what string) map[string]string {
	t.Helper()
	out := must(l.Machine(node).Exec(t.Context(), "/usr/bin/wg", "show", "kilo0", what))(t)
	peers := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		peers[key] = value
	}
	return peers
}

// kgctl builds kgctl and returns how to run it, as administrator.
func kgctl(t *testing.T, l *lab.Lab) func(args ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kgctl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/kgctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return func(args ...string) string {
		t.Helper()
		return must(l.Machine("cp").Exec(t.Context(), append([]string{binary, "--kubeconfig", l.Kubeconfig("admin")}, args...)...))(t)
	}
}

// gatewayIs is a check for eventually: all agents that run hold that node for
// the location's gateway.
func gatewayIs(ctx context.Context, l *lab.Lab, location, want string) func() error {
	return func() error {
		for _, n := range l.Agents() {
			if !n.Alive() || n.Daemon("kg") == 0 {
				continue
			}
			s, err := n.AgentStatus(ctx)
			if err != nil {
				return err
			}
			if got := s.Gateway(location); got != want {
				return fmt.Errorf("%s holds %q for the gateway of %s, want %s", n.Name, got, location, want)
			}
		}
		return nil
	}
}

// apply creates or changes objects, given as YAML.
func apply(t *testing.T, l *lab.Lab, yaml string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	ok(t, os.WriteFile(file, []byte(yaml), 0o644))
	must(l.Kubectl(t.Context(), "apply", "--server-side", "--filename="+file))(t)
}
