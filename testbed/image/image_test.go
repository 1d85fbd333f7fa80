// Package image tests the image of kg: what make image builds is looked at and run
// from its own root.
package image

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// The image holds kg, by two names, and nothing that somebody who broke in could
// use. Both run from its root, as a runtime would start them.
func TestImage(t *testing.T) {
	for _, needed := range []string{"buildah", "make"} {
		if _, err := exec.LookPath(needed); err != nil {
			if why := os.Getenv("KILO_TEST_SKIP_ROOT"); why != "" {
				t.Skipf("no image is built (KILO_TEST_SKIP_ROOT=%s): %v", why, err)
			}
			t.Fatalf("the image is built with %s: testbed/setup.sh cilium image: %v", needed, err)
		}
	}
	root, err := tools.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	store := t.TempDir()
	buildah := []string{"buildah", "--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver", "vfs"}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = root
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s%s", strings.Join(args, " "), err, out, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	const name = "localhost/kilo-under-test"
	run("make", "image", "DOCKER=false", "BUILDAH="+strings.Join(buildah, " "), "IMAGE="+name)
	version := run("sed", "-n", "s/^appVersion: //p", "manifests/helm/kilo/Chart.yaml")

	var made struct {
		OCIv1 struct {
			Config struct {
				Entrypoint []string
				Env        []string
				Labels     map[string]string
			}
		}
	}
	if err := json.Unmarshal([]byte(run(append(buildah, "inspect", "--type", "image", name+":"+version)...)), &made); err != nil {
		t.Fatal(err)
	}
	config := made.OCIv1.Config
	if !slices.Equal(config.Entrypoint, []string{"kg"}) || !slices.Contains(config.Env, "PATH=/usr/bin") {
		t.Errorf("entrypoint %q, environment %q", config.Entrypoint, config.Env)
	}
	for label, want := range map[string]string{"version": version, "licenses": "Apache-2.0", "source": "https://github.com/kilo-overlay/kilo"} {
		if got := config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s: %q, want %q", label, got, want)
		}
	}

	container := run(append(buildah, "from", "--pull-never", name+":"+version)...)
	mount := run(append(buildah, "mount", container)...)
	t.Cleanup(func() {
		if out, err := exec.Command(buildah[0], append(buildah[1:], "umount", container)...).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	var files []string
	if err := filepath.WalkDir(mount, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, fmt.Sprintf("%s %s", strings.TrimPrefix(path, mount), d.Type()))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/usr/bin/kg ----------", "/usr/bin/wg L---------"}; !slices.Equal(files, want) {
		t.Errorf("the image holds %q, want %q", files, want)
	}

	inside := func(args ...string) string {
		return run(append([]string{"unshare", "--net", "chroot", mount}, args...)...)
	}
	if got := inside("/usr/bin/kg", "--version"); got != version {
		t.Errorf("kg --version says %q, want %q", got, version)
	}
	if got := inside("/usr/bin/wg", "show"); got != "" {
		t.Errorf("wg show says %q in a network without devices", got)
	}
	if got := inside("/usr/bin/kg", "--help"); !strings.Contains(got, "--mesh-granularity") {
		t.Errorf("kg --help says %.200q", got)
	}
}
