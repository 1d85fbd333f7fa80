package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"

	"github.com/kilo-overlay/kilo/core/join"
)

func newInterface(ctx context.Context, name string, key [32]byte, addresses []netip.Addr, mtu int, log *slog.Logger) (join.Tunnel, <-chan struct{}, error) {
	i, err := join.NewInterface(ctx, name, key, addresses, mtuOr(mtu), log)
	if err != nil {
		return nil, nil, err
	}
	return i, i.Done(), nil
}

// splitDNS has systemd-resolved ask server for names in domain. It is a setting of
// the interface, and goes with it.
func splitDNS(ctx context.Context, iface string, server netip.Addr, domain string) error {
	ctx, cancel := context.WithTimeout(ctx, waitForLink)
	defer cancel()
	for _, args := range [][]string{{"dns", iface, server.String()}, {"domain", iface, "~" + domain}} {
		if out, err := exec.CommandContext(ctx, "resolvectl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("--dns: resolvectl %v: %w %s; does systemd-resolved run?", args, err, bytes.TrimSpace(out))
		}
	}
	return nil
}
