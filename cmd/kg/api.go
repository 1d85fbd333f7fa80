package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// restConfig is the way to the API server: the pod's own service account unless
// flags say otherwise.
func restConfig(o *options) (*rest.Config, error) {
	if o.kubeconfig == "" && o.master == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no way to the API server: this is no pod with a service account (%w); name a --kubeconfig or a --master", err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags(o.master, o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s --master=%s: %w", o.kubeconfig, o.master, err)
	}
	return c, nil
}

// countWrites counts the requests of c that write. Reviews of one's own access
// store nothing and are none.
func countWrites(c *rest.Config) func() float64 {
	var n atomic.Uint64
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			switch r.Method {
			case http.MethodGet, http.MethodHead, http.MethodOptions:
			default:
				if !strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
					n.Add(1)
				}
			}
			return next.RoundTrip(r)
		})
	})
	return func() float64 { return float64(n.Load()) }
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
