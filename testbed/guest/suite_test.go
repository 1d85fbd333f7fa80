package guest

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/kerneltest"
)

// What core/kernel and core/wireguard promise holds with the kernel's own
// WireGuard. Outside of the guest the same tests run with the built-in device,
// where the kernel has none.
func TestKernelSuite(t *testing.T) {
	need(t, Check())
	dir := t.TempDir()
	g := &Guest{
		Init:     filepath.Join(dir, "init"),
		Programs: host(t, kerneltest.Programs()...),
		Files:    map[string][]byte{"/etc/protocols": []byte(protocols)},
	}
	iptables, err := IPTables()
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(g.Programs, iptables)
	if err := Build(t.Context(), g.Init, "./testbed/guest/init"); err != nil {
		t.Fatal(err)
	}
	tests := []string{"wireguard", "kernel"}
	for _, name := range tests {
		out := filepath.Join(dir, name)
		if err := BuildTests(t.Context(), out, "./core/"+name); err != nil {
			t.Fatal(err)
		}
		g.Programs["/"+name+".test"] = out
		g.Commands = append(g.Commands, Command{Args: []string{"/" + name + ".test", "-test.v", "-test.timeout=8m"}})
	}
	for i, r := range boot(t, g, 10*time.Minute, Here) {
		// A skipped test, or none, proves nothing.
		if passed := strings.Count("\n"+r.Output, "\n--- PASS"); passed == 0 || strings.Contains(r.Output, "--- SKIP") {
			t.Errorf("%s: %d tests passed; none may be skipped:\n%s", tests[i], passed, r.Output)
		} else {
			t.Logf("%s: %d tests passed", tests[i], passed)
		}
		if tests[i] == "kernel" && !strings.Contains(r.Output, "kind=kernel") {
			t.Errorf("the kernel's WireGuard was not used:\n%s", r.Output)
		}
	}
}
