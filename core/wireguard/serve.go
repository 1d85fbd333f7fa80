package wireguard

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"
)

// Serve keeps the device there until ctx ends: the whole life of a process that
// only carries packets, so that agents come and go without a gap. It makes the
// device as Ensure does, and again when somebody deletes its interface.
//
// Where the kernel has WireGuard, or another process serves the device, there
// is nothing to carry; then Serve takes over when the link goes.
func Serve(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	for {
		d, err := Ensure(ctx, o)
		if err != nil {
			return err
		}
		if d.Local() {
			select {
			case <-ctx.Done():
				d.Close()
				return nil
			case <-d.Done():
			}
		} else if err := untilGone(ctx, o.Interface); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		o.Log.Warn("the interface was deleted; making it again", "interface", o.Interface)
	}
}

// lookEvery is how often to look whether a link that others serve is there.
const lookEvery = 250 * time.Millisecond

// untilGone waits until there is no interface of that name. Its error is ctx's,
// or the kernel's.
func untilGone(ctx context.Context, name string) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		switch _, err := netlink.LinkByName(name); {
		case isNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("interface %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
