package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// restConfig is the way to the API server: what --master says, else what the
// kubeconfig says, else the pod's own service account. The last is taken too where
// the kubeconfig is not there: a manifest for clusters most of which have one serves
// the others as well. inPod is rest.InClusterConfig.
func restConfig(o *options, inPod func() (*rest.Config, error), log *slog.Logger) (*rest.Config, error) {
	if o.kubeconfig == "" && o.master == "" {
		c, err := inPod()
		if err != nil {
			return nil, fmt.Errorf("no way to the API server: this is no pod with a service account (%w); name a --kubeconfig or a --master", err)
		}
		return c, nil
	}
	if _, err := os.Stat(o.kubeconfig); errors.Is(err, fs.ErrNotExist) && o.master == "" {
		if c, inPodErr := inPod(); inPodErr == nil {
			log.Warn("the kubeconfig is not there; asking the API server with the pod's service account", "kubeconfig", o.kubeconfig, "server", c.Host)
			return c, nil
		}
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
