package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"

	"github.com/kilo-overlay/kilo/core/agent"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

// link keeps the WireGuard device: agent and kernel both ask for it where it is
// missing, and only one of them may make it.
type link struct {
	options wireguard.Options

	mu   sync.Mutex
	held *wireguard.Device // nil before the first success
}

// percentWithDevice is how much garbage there may be beside a device of our own,
// in percent of what is in use (GOGC). The device's buffers are two thirds of
// that, 27 MB, and hold no pointers: by the usual 100 they would allow as much
// garbage again and save nothing.
const percentWithDevice = 25

func newLink(o *options, key model.Key, log *slog.Logger) *link {
	return &link{options: wireguard.Options{
		Interface: o.iface, Mode: o.wireguard.value, External: !o.createInterface,
		Port: uint16(o.port), Key: key, Log: log,
	}}
}

// ensure returns the device, making it where it is missing. The same device is
// the same value.
func (l *link) ensure(ctx context.Context, mtu int) (agent.Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.options.MTU = mtu
	d, err := wireguard.Ensure(ctx, l.options)
	if errors.Is(err, wireguard.ErrNotThere) {
		return nil, fmt.Errorf("interface %s is %w: --create-interface=false leaves it to another process, such as \"kg wireguard\"", l.options.Interface, agent.ErrNotYet)
	}
	if err != nil {
		return nil, err
	}
	// For a device that this process serves, and for one that was adopted
	// again, Ensure's answer is another value for the same thing.
	if l.held == nil || gone(l.held) || d.Local() || d.Kind() != l.held.Kind() {
		l.held = d
	}
	if d.Local() && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percentWithDevice)
	}
	return l.held, nil
}

// ensureAgain is ensure for the kernel, which finds a link missing.
func (l *link) ensureAgain(ctx context.Context) error {
	l.mu.Lock()
	mtu := l.options.MTU
	l.mu.Unlock()
	_, err := l.ensure(ctx, mtu)
	return err
}

func gone(d *wireguard.Device) bool {
	select {
	case <-d.Done(): // never of one that this process does not serve
		return true
	default:
		return false
	}
}
