package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// An address that is somebody else's for now is served as soon as it is free,
// and left when it is no longer wanted.
func TestServerWaitsForItsAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(taken.Addr().String())
	var failures atomic.Int32
	s := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") }),
		slog.New(slog.DiscardHandler), func(error) { failures.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	s.Listen([]netip.AddrPort{at})

	eventually(t, "the failure is counted", func() bool { return failures.Load() > 0 })
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	get := func() string {
		r, err := http.Get("http://" + at.String())
		if err != nil {
			return err.Error()
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return string(b)
	}
	eventually(t, "it serves", func() bool { return get() == "here" })
	s.Listen(nil)
	eventually(t, "it left", func() bool { return strings.Contains(get(), "refused") })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}

func eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !true(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after ten seconds still not: %s", what)
		}
	}
}

func TestPages(t *testing.T) {
	status := Status{Node: "e1", Waiting: []string{"the host CNI is not known"}}
	var sick error
	h := (&pages{
		status: func(context.Context) Status { return status }, plan: func(context.Context) string { return "# wanted" },
		healthy: func() error { return sick }, metrics: newMetrics().handler(),
	}).handler()
	get := func(path, from string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		r.RemoteAddr = from
		h.ServeHTTP(w, r)
		return w
	}
	const other, here = "10.0.0.9:40000", "127.0.0.1:40000"
	if w := get("/readyz", other); w.Code != 503 || !strings.Contains(w.Body.String(), "the host CNI is not known") {
		t.Errorf("/readyz: %d %s", w.Code, w.Body)
	}
	status.Ready = true
	for path, code := range map[string]int{"/readyz": 200, "/healthz": 200, "/health": 200, "/metrics": 200, "/status": 200, "/debug/plan": 403, "/debug/pprof/": 404, "/": 404} {
		if w := get(path, other); w.Code != code {
			t.Errorf("%s from another host: %d, want %d", path, w.Code, code)
		}
	}
	if w := get("/debug/plan", here); w.Code != 200 || w.Body.String() != "# wanted" {
		t.Errorf("/debug/plan from here: %d %s", w.Code, w.Body)
	}
	var back Status
	if err := json.Unmarshal(get("/status", other).Body.Bytes(), &back); err != nil || back.Node != "e1" {
		t.Errorf("/status: %v, %+v", err, back)
	}
	metrics := get("/metrics", other).Body.String()
	for _, name := range []string{"kilo_errors_total", "kilo_leader", "kilo_nodes", "kilo_peers", "kilo_reconciles_total"} {
		if name != "kilo_errors_total" && !strings.Contains(metrics, "\n"+name+" ") {
			t.Errorf("/metrics lacks Kilo's %s", name)
		}
	}
	sick = errors.New("a pass has been running for 5m0s")
	if w := get("/healthz", other); w.Code != 503 {
		t.Errorf("/healthz with a stuck loop: %d", w.Code)
	}
}

// The pages are where a kubelet asks for them, too, when the node calls another
// address its internal one.
func TestWhereToListen(t *testing.T) {
	listen := func(at ...string) (out []netip.AddrPort) {
		for _, a := range at {
			out = append(out, netip.MustParseAddrPort(a))
		}
		return out
	}
	for _, c := range []struct {
		name     string
		listen   string
		internal []netip.Prefix
		node     []netip.Addr
		want     []netip.AddrPort
	}{
		{"nothing known", "", nil, nil, listen("127.0.0.1:1107")},
		{"as usual", "", prefixes("10.0.0.1/24"), addrs("10.0.0.1"), listen("127.0.0.1:1107", "10.0.0.1:1107")},
		{"forced", "", prefixes("192.168.7.1/24"), addrs("10.0.0.1"), listen("127.0.0.1:1107", "192.168.7.1:1107", "10.0.0.1:1107")},
		{"told", "0.0.0.0:9", prefixes("10.0.0.1/24"), addrs("10.0.0.1"), listen("0.0.0.0:9")},
	} {
		a := &Agent{}
		if c.listen != "" {
			a.Config.Listen = netip.MustParseAddrPort(c.listen)
		}
		if got := a.addresses(c.internal, c.node); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
