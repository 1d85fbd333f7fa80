package cilium_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kilo-overlay/kilo/adapters/cilium"
)

// said is what a real agent of Cilium 1.20.2 answered: testdata/DIR. change, where
// it is not nil, alters it.
type said struct{ health, config map[string]any }

func read(t *testing.T, dir string, change func(*said)) *said {
	t.Helper()
	s := &said{}
	for name, into := range map[string]*map[string]any{"healthz.json": &s.health, "config.json": &s.config} {
		text, err := os.ReadFile(filepath.Join("testdata", dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(s)
	}
	return s
}

// option sets one of the options that the agent says it has.
func (s *said) option(name string, value any) {
	s.config["status"].(map[string]any)["daemonConfigurationMap"].(map[string]any)[name] = value
}

// part is an object of the agent's health.
func (s *said) part(name string) map[string]any { return s.health[name].(map[string]any) }

// serve answers at a socket, as the agent does, until the test ends or stop is
// called, which leaves the socket behind, as an agent that was killed does.
func (s *said) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	mux := http.NewServeMux()
	for path, body := range map[string]any{"GET /v1/healthz": s.health, "GET /v1/config": s.config} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body)
		})
	}
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	stop = func() { server.Close() }
	t.Cleanup(stop)
	return stop
}

// apiServer serves one CiliumNode and what becomes of it.
type apiServer struct {
	*httptest.Server
	mu     sync.Mutex
	node   string // JSON; "": there is none
	status int    // of every answer; 0: as it should be
	events chan string
	asked  int // how often the object was asked for
}

func newAPIServer(t *testing.T, node string) *apiServer {
	s := &apiServer{node: node, events: make(chan string, 8)}
	const path = "/apis/cilium.io/v2/ciliumnodes"
	fail := func(w http.ResponseWriter, code int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"/e1", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked++
		switch {
		case s.status == http.StatusForbidden:
			fail(w, s.status, "Forbidden")
		case s.status != 0:
			fail(w, s.status, "InternalError")
		case s.node == "":
			fail(w, http.StatusNotFound, "NotFound")
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, s.node)
		}
	})
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" || r.URL.Query().Get("fieldSelector") != "metadata.name=e1" {
			fail(w, http.StatusBadRequest, "BadRequest")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case e := <-s.events:
				if e == "" {
					return // as a watch ends after some minutes
				}
				_, _ = io.WriteString(w, e+"\n")
				w.(http.Flusher).Flush()
			}
		}
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// fails makes every answer one with that status; 0: no more.
func (s *apiServer) fails(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// options are those of an adapter on node e1 that asks this API server and the
// agent at a socket of its own.
func (s *apiServer) options(t *testing.T) cilium.Options {
	t.Helper()
	nodes, err := dynamic.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	// Short, since a socket's path has to fit into 108 bytes.
	dir, err := os.MkdirTemp("", "cilium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return cilium.Options{
		Socket: filepath.Join(dir, "cilium.sock"), Node: "e1", Nodes: nodes,
		Interface: "kilo0", Port: 51820, PollEvery: 20e6,
	}
}

// ciliumNode is a CiliumNode called e1 with that spec.ipam.
func ciliumNode(ipam string) string {
	return `{"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{"name":"e1","resourceVersion":"7"},
		"spec":{"addresses":[{"ip":"10.1.0.11","type":"InternalIP"},{"ip":"10.244.6.3","type":"CiliumInternalIP"}],"ipam":` + ipam + `}}`
}
