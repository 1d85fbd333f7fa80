package detect_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/adapters/detect"
	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
)

func TestAdapter(t *testing.T) {
	annotated := map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true",
		"flannel.alpha.coreos.com/backend-type":        "vxlan",
	}
	for _, c := range []struct {
		name        string
		word        string
		subnetFile  bool
		socket      bool
		annotations map[string]string
		want        string   // the adapter's name
		err         []string // parts of the error
		unsupported bool
	}{
		{name: "asked for by name, nothing there yet", word: "flannel", want: "flannel"},
		{name: "asked for by name, whatever is there", word: "flannel", socket: true, want: "flannel"},
		{name: "Flannel runs", word: "auto", subnetFile: true, annotations: annotated, want: "flannel"},
		{name: "Flannel runs, no API server yet", word: "auto", subnetFile: true, want: "flannel"},
		{name: "nothing there yet", word: "auto", err: []string{"subnet.env", "flannel.alpha.coreos.com", "cilium.sock", "--adapter"}},
		{name: "Flannel ran once, or is about to", word: "auto", annotations: annotated, err: []string{"annotated", "not up", "subnet.env"}},
		{name: "two at once", word: "auto", subnetFile: true, socket: true, err: []string{"subnet.env", "cilium.sock", "--adapter"}},
		{name: "Cilium runs", word: "auto", socket: true, err: []string{"cilium"}, unsupported: true},
		{name: "Cilium runs where Flannel ran once", word: "auto", socket: true, annotations: annotated, err: []string{"cilium"}, unsupported: true},
		{name: "Cilium asked for", word: "cilium", err: []string{"cilium"}, unsupported: true},
		{name: "an unknown word", word: "calico", subnetFile: true, err: []string{`"calico"`, "auto, flannel or cilium"}, unsupported: true},
		{name: "no word", word: "", err: []string{`""`, "auto, flannel or cilium"}, unsupported: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			o := detect.Options{
				Flannel: flannel.Options{
					SubnetFile:      filepath.Join(dir, "subnet.env"),
					NodeAnnotations: func() map[string]string { return c.annotations },
				},
				CiliumSocket: filepath.Join(dir, "cilium.sock"),
			}
			if c.subnetFile {
				if err := os.WriteFile(o.Flannel.SubnetFile, []byte("FLANNEL_SUBNET=10.244.2.1/24\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if c.socket {
				l, err := net.Listen("unix", o.CiliumSocket)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			a, err := detect.Adapter(t.Context(), c.word, o)
			if c.want != "" {
				if err != nil {
					t.Fatal(err)
				}
				if a.Name() != c.want {
					t.Errorf("got adapter %s, want %s", a.Name(), c.want)
				}
				return
			}
			if err == nil {
				t.Fatalf("got adapter %s, want an error with %q", a.Name(), c.err)
			}
			for _, part := range c.err {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			var u *adapter.Unsupported
			if errors.As(err, &u) != c.unsupported {
				t.Errorf("error %q: unsupported for good is %t, want %t", err, !c.unsupported, c.unsupported)
			}
		})
	}
}

// Not being able to look is not the same as nothing being there.
func TestAdapterCannotLook(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o := detect.Options{
		Flannel:      flannel.Options{SubnetFile: filepath.Join(file, "subnet.env")}, // a file, not a folder
		CiliumSocket: filepath.Join(dir, "cilium.sock"),
	}
	_, err := detect.Adapter(t.Context(), "auto", o)
	if err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("got %v, want the reason why it could not look", err)
	}
}
