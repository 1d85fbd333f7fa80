//go:build !linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"

	"github.com/kilo-overlay/kilo/core/join"
)

func newInterface(context.Context, string, [32]byte, []netip.Addr, int, *slog.Logger) (join.Tunnel, <-chan struct{}, error) {
	return nil, nil, errors.New("on " + runtime.GOOS + " kgctl makes no interface: use --socks5, or kgctl peer add and the WireGuard app")
}

func splitDNS(context.Context, string, netip.Addr, string) error { return nil }
