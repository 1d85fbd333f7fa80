package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// pages are what the HTTP server shows.
type pages struct {
	status  func(context.Context) Status
	plan    func(context.Context) string
	healthy func() error
	metrics http.Handler
}

// handler serves
//
//	/healthz     200 while the process runs and its loop is not stuck
//	/readyz      200 once the node does its part; otherwise 503 and what is missing
//	/metrics     Prometheus
//	/status      Status as JSON
//	/debug/plan  desired and observed state as text; to loopback only
//
// Kilo's /health is kept for manifests that name it.
func (p *pages) handler() http.Handler {
	mux := http.NewServeMux()
	health := func(w http.ResponseWriter, r *http.Request) {
		if err := p.healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /healthz", health)
	mux.HandleFunc("GET /health", health)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		s := p.status(r.Context())
		if s.Ready {
			fmt.Fprintln(w, "ok")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, m := range append(slices.Clone(s.Waiting), s.Last.Errors...) {
			fmt.Fprintln(w, m)
		}
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(p.status(r.Context())) // the client's loss if it hung up
	})
	mux.Handle("GET /metrics", p.metrics)
	mux.HandleFunc("GET /debug/plan", func(w http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only to 127.0.0.1 and ::1", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, p.plan(r.Context()))
	})
	return mux
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// server listens on addresses that may come late, change, and be away for a
// while: the node's own address is known only after the API server answered.
type server struct {
	handler http.Handler
	log     *slog.Logger
	failed  func(error)
	listen  func(context.Context, netip.AddrPort, http.Handler) (*http.Server, net.Listener, error)

	mu   sync.Mutex
	want []netip.AddrPort
	set  chan struct{} // capacity 1
}

func newServer(h http.Handler, log *slog.Logger, failed func(error)) *server {
	return &server{handler: h, log: log, failed: failed, listen: listen, set: make(chan struct{}, 1)}
}

// Listen says on which addresses to serve from now on.
func (s *server) Listen(on []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.want, on) {
		return
	}
	s.want = slices.Clone(on)
	select {
	case s.set <- struct{}{}:
	default:
	}
}

// Run serves until ctx ends. An address that cannot be bound is tried again
// and never stops the agent.
func (s *server) Run(ctx context.Context) error {
	open := map[netip.AddrPort]*http.Server{}
	ended := make(chan netip.AddrPort)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer func() {
		for _, h := range open {
			_ = h.Close()
		}
	}()
	pause := backoff{min: time.Second, max: 30 * time.Second}
	complained := map[netip.AddrPort]bool{}
	for {
		s.mu.Lock()
		want := s.want
		s.mu.Unlock()
		for a, h := range open {
			if !slices.Contains(want, a) {
				_ = h.Close()
				delete(open, a)
			}
		}
		var retry <-chan time.Time
		for _, a := range want {
			if open[a] != nil {
				continue
			}
			h, l, err := s.listen(ctx, a, s.handler)
			if err != nil {
				s.failed(err)
				if !complained[a] {
					s.log.Warn("cannot serve metrics and health, trying again", "address", a, "error", err)
					complained[a] = true
				}
				if retry == nil {
					retry = time.After(pause.Next())
				}
				continue
			}
			complained[a] = false
			open[a] = h
			s.log.Info("serving metrics and health", "address", a)
			serving.Go(func() {
				err := h.Serve(l)
				if errors.Is(err, http.ErrServerClosed) {
					return
				}
				select {
				case ended <- a:
				case <-ctx.Done():
				}
			})
		}
		if retry == nil {
			pause.Reset()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.set:
		case <-retry:
		case a := <-ended:
			delete(open, a)
		}
	}
}

func listen(ctx context.Context, a netip.AddrPort, h http.Handler) (*http.Server, net.Listener, error) {
	var c net.ListenConfig
	host := a.Addr().String()
	if a.Addr().IsUnspecified() && a.Addr().Is6() {
		host = "" // both families
	}
	l, err := c.Listen(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(a.Port())))
	if err != nil {
		return nil, nil, err
	}
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}, l, nil
}
