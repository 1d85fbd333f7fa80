package cilium_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/adapters/cilium"
)

// A CiliumNode that changes and an agent that is started anew are heard of; what
// the watch saw is not asked for again.
func TestWatch(t *testing.T) {
	api := newAPIServer(t, ciliumNode(onePrefix))
	o := api.options(t)
	said := read(t, "native", nil)
	stop := said.serve(t, o.Socket)
	a := cilium.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 16), make(chan error, 1)
	go func() { ended <- a.Watch(ctx, func() { changed <- struct{}{} }) }()
	wait := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: nothing heard", what)
		}
	}

	api.events <- `{"type":"ADDED","object":` + ciliumNode(onePrefix) + `}`
	wait("a first event")
	api.events <- `{"type":"MODIFIED","object":` + ciliumNode(`{"podCIDRs":["10.244.6.0/24","10.244.9.0/24"]}`) + `}`
	wait("a prefix more")
	f, err := a.Discover(t.Context())
	if want := prefixes("10.244.6.0/24", "10.244.9.0/24"); err != nil || !slices.Equal(f.PodPrefixes, want) {
		t.Errorf("got %v, %v; want %v", f.PodPrefixes, err, want)
	}
	api.mu.Lock()
	if api.asked > 0 {
		t.Errorf("the API server was asked %d times for what it had told", api.asked)
	}
	api.mu.Unlock()

	stop()
	said.serve(t, o.Socket)
	wait("an agent started anew")

	api.events <- "" // the watch ends
	api.events <- `{"type":"ADDED","object":` + ciliumNode(onePrefix) + `}`
	wait("an event of the next watch")
	if f, err := a.Discover(t.Context()); err != nil || !slices.Equal(f.PodPrefixes, prefixes("10.244.6.0/24")) {
		t.Errorf("got %v, %v", f.PodPrefixes, err)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Watch does not end")
	}
}
