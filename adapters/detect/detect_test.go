package detect_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/adapters/cilium"
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
		chained     string // what Cilium's agent says of itself; "": it does not answer
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
		{name: "two at once", word: "auto", subnetFile: true, socket: true, chained: "none", err: []string{"subnet.env", "cilium.sock", "not chained", "--adapter"}},
		{name: "two, and Cilium is down", word: "auto", subnetFile: true, socket: true, err: []string{"subnet.env", "cilium.sock", "waiting", "--adapter"}},
		{name: "Cilium runs", word: "auto", socket: true, chained: "none", want: "cilium"},
		{name: "Cilium runs, with the CNI plugin portmap behind it", word: "auto", socket: true, chained: "portmap", want: "cilium"},
		{name: "Cilium was there, and is down", word: "auto", socket: true, err: []string{"cilium.sock"}},
		{name: "Cilium runs where Flannel ran once", word: "auto", socket: true, chained: "none", annotations: annotated, want: "cilium"},
		{name: "Cilium chained behind Flannel", word: "auto", subnetFile: true, socket: true, chained: "generic-veth", want: "flannel"},
		{name: "Cilium chained in Flannel's own mode", word: "auto", subnetFile: true, socket: true, chained: "flannel", want: "flannel"},
		{name: "Cilium chained, Flannel not up yet", word: "auto", socket: true, chained: "generic-veth", err: []string{"generic-veth", "subnet.env", "waiting"}},
		{name: "Cilium asked for, nothing there yet", word: "cilium", want: "cilium"},
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
				Cilium: cilium.Options{Socket: filepath.Join(dir, "cilium.sock")},
			}
			if c.subnetFile {
				if err := os.WriteFile(o.Flannel.SubnetFile, []byte("FLANNEL_SUBNET=10.244.2.1/24\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if c.socket {
				l, err := net.Listen("unix", o.Cilium.Socket)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if c.chained != "" {
					go http.Serve(l, answers(c.chained))
				} else {
					l.(*net.UnixListener).SetUnlinkOnClose(false)
					l.Close() // an agent that was killed leaves its socket behind
				}
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

// answers serves what Cilium's agent says, of which the chaining counts here.
func answers(chained string) http.Handler {
	mux := http.NewServeMux()
	said := func(path, body string) {
		mux.HandleFunc("GET /v1"+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		})
	}
	said("/healthz", `{"cilium":{"state":"Ok"},"cni-chaining":{"mode":"`+chained+`"}}`)
	said("/config", `{"status":{"ipam-mode":"kubernetes"}}`)
	return mux
}

// Not being able to look is not the same as nothing being there.
func TestAdapterCannotLook(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o := detect.Options{
		Flannel: flannel.Options{SubnetFile: filepath.Join(file, "subnet.env")}, // a file, not a folder
		Cilium:  cilium.Options{Socket: filepath.Join(dir, "cilium.sock")},
	}
	_, err := detect.Adapter(t.Context(), "auto", o)
	if err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("got %v, want the reason why it could not look", err)
	}
}
