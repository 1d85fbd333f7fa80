package main

import (
	"context"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/kilo-overlay/kilo/core/state"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

// serveDevice is "kg wireguard": the WireGuard device without an agent, and so
// without keys, peers and addresses of its own. An agent configures it, and the
// device outlives that agent.
func serveDevice(ctx context.Context, o *options, _, logTo io.Writer) error {
	log := newLog(logTo, o.logLevel.value)
	unlock, err := lock(ctx, o.stateDir, deviceLockFile, lockPatience)
	if err != nil {
		return err
	}
	defer unlock()
	log.Info("carrying packets for agents to come", "version", version(), "interface", o.iface)
	g, ctx := errgroup.WithContext(ctx)
	links := 1
	if o.failoverPort > 0 {
		links = o.gateways
	}
	for slot := range links {
		g.Go(func() error {
			return wireguard.Serve(ctx, wireguard.Options{Interface: state.TunnelLink(o.iface, slot), Mode: o.wireguard.value, MTU: int(o.mtu), Log: log})
		})
	}
	return g.Wait()
}
