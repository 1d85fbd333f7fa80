package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// kgctl runs where people sit. What it stands on must build there, and drag in
// nothing that knows Linux.
func TestBuildsOnOtherSystems(t *testing.T) {
	for _, system := range []string{"darwin", "windows"} {
		t.Run(system, func(t *testing.T) {
			run := func(args ...string) string {
				cmd := exec.Command("go", args...)
				cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=0")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			for imported := range strings.FieldsSeq(run("list", "-deps", ".")) {
				for _, linux := range []string{"/core/kernel", "/core/wireguard", "/core/agent", "vishvananda/netlink", "google/nftables", "zx2c4.com/wireguard/wgctrl"} {
					if strings.Contains(imported, linux) {
						t.Errorf("kgctl imports %s", imported)
					}
				}
			}
			run("build", "-o", os.DevNull, ".")
		})
	}
}
