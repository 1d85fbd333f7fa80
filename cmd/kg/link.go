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

// link keeps the WireGuard devices: agent and kernel both ask for them where they
// are missing, and only one of them may make one.
type link struct {
	options wireguard.Options // of the first

	mu   sync.Mutex
	held map[string]*wireguard.Device // by interface, after the first success
}

// percentWithDevice is how much garbage there may be beside a device of our own,
// in percent of what is in use (GOGC). The device's buffers are two thirds of
// that, 27 MB, and hold no pointers: by the usual 100 they would allow as much
// garbage again and save nothing.
const percentWithDevice = 25

func newLink(o *options, key model.Key, log *slog.Logger) *link {
	return &link{held: map[string]*wireguard.Device{}, options: wireguard.Options{
		Interface: o.iface, Mode: o.wireguard.value, External: !o.createInterface,
		Port: uint16(o.port), Key: key, Log: log,
	}}
}

// first returns the first device, making it where it is missing. The same device
// is the same value.
func (l *link) first(ctx context.Context, mtu int) (agent.Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.options.MTU = mtu
	d, err := l.ensure(ctx, l.options)
	if err != nil {
		return nil, err // not a nil Device in an interface
	}
	return d, nil
}

// missing makes a device that the kernel finds missing.
func (l *link) missing(ctx context.Context, name string, port uint16) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.options
	o.Interface, o.Port = name, port
	_, err := l.ensure(ctx, o)
	return err
}

func (l *link) ensure(ctx context.Context, o wireguard.Options) (*wireguard.Device, error) {
	d, err := wireguard.Ensure(ctx, o)
	if errors.Is(err, wireguard.ErrNotThere) {
		return nil, fmt.Errorf("interface %s is %w: --create-interface=false leaves it to another process, such as \"kg wireguard\"", o.Interface, agent.ErrNotYet)
	}
	if err != nil {
		return nil, err
	}
	// For a device that this process serves, and for one that was adopted
	// again, Ensure's answer is another value for the same thing.
	if held := l.held[o.Interface]; held == nil || gone(held) || d.Local() || d.Kind() != held.Kind() {
		l.held[o.Interface] = d
	}
	if d.Local() && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percentWithDevice)
	}
	return l.held[o.Interface], nil
}

// close stops the devices that this process serves.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.held {
		d.Close()
	}
}

func gone(d *wireguard.Device) bool {
	select {
	case <-d.Done(): // never of one that this process does not serve
		return true
	default:
		return false
	}
}
