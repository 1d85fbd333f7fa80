package wireguard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// The kinds of device: what Device.Kind returns and Options.Mode may force.
const (
	Kernel    = "kernel"
	Userspace = "userspace"
	// Auto is the Mode that takes the kernel's WireGuard where there is one.
	Auto = "auto"
)

// Options say what link is wanted.
type Options struct {
	// Interface is the link's name, at most 15 bytes.
	Interface string
	// Mode is Auto (or ""), Kernel or Userspace.
	Mode string
	// External leaves the link to somebody else to make, such as a process
	// that runs Serve; it is only adopted. While it is not there, or not ready
	// yet, the error is an ErrNotThere.
	External bool
	// MTU in bytes for a link that has to be made; 0: 1420. An existing link
	// keeps its own.
	MTU int
	// Port is the UDP port that the link is going to listen on. Ensure only
	// checks that no stranger has it; 0: no check.
	Port uint16
	// Key is this node's public key. A link without our alias that holds it is
	// ours all the same: an earlier Kilo made it. The zero Key recognises none.
	Key model.Key
	// Log is where transitions go; nil: slog.Default().
	Log *slog.Logger

	stagedEvery time.Duration // 0: as below; for tests
}

// ErrNotThere is what the error of an External link wraps that is not there yet.
var ErrNotThere = errors.New("not there yet")

// Foreign says that a name or port we need belongs to somebody else.
type Foreign struct {
	// What is taken ("interface kilo0", "UDP port 51820").
	What string
	// Owner is who has it ("process boringtun (pid 811)", "a bridge link").
	Owner string
	// Do says what a person can do about it.
	Do string
}

func (f *Foreign) Error() string {
	return fmt.Sprintf("%s belongs to %s: %s", f.What, f.Owner, f.Do)
}

// Device is a WireGuard link that is there.
type Device struct {
	kind string
	user *userspace // nil: the kernel's, or served by another process
}

// Kind is Kernel or Userspace.
func (d *Device) Kind() string { return d.kind }

// Local tells whether this process carries the device's packets: then it ends
// with the process.
func (d *Device) Local() bool { return d.user != nil }

// Done is closed when a device that this process serves has ended, by Close or
// because somebody deleted its interface. For others it is nil: it never is.
func (d *Device) Done() <-chan struct{} {
	if d.user == nil {
		return nil
	}
	return d.user.done
}

// Close stops a device that this process serves, and its interface goes. It
// does nothing to a kernel link or one that another process serves.
func (d *Device) Close() {
	if d.user != nil {
		d.user.close()
	}
}

// Ensure returns the WireGuard link of that name, making it where it is
// missing. It is idempotent: a link of ours is adopted as it is, whoever made
// it; of a device that this process serves already, the Device returned does
// not own it (its Close does nothing). The link is left down, without keys and
// addresses: core/kernel configures it.
//
// A name or UDP port that belongs to somebody else is a *Foreign error.
func Ensure(ctx context.Context, o Options) (*Device, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.MTU == 0 {
		o.MTU = device.DefaultMTU
	}
	switch o.Mode {
	case "":
		o.Mode = Auto
	case Auto, Kernel, Userspace:
	default:
		return nil, fmt.Errorf("WireGuard device: unknown kind %q; use %s, %s or %s", o.Mode, Auto, Kernel, Userspace)
	}
	if o.Interface == "" || len(o.Interface) >= unix.IFNAMSIZ {
		return nil, fmt.Errorf("WireGuard device: interface name %q must have 1 to %d bytes", o.Interface, unix.IFNAMSIZ-1)
	}

	link, err := netlink.LinkByName(o.Interface)
	if isNotFound(err) && o.External {
		return nil, notThere(o)
	}
	if isNotFound(err) {
		return create(ctx, o)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", o.Interface, err)
	}
	d, err := adopt(o, link)
	if err != nil {
		return nil, err
	}
	if d == nil && o.External {
		return nil, &Foreign{What: "interface " + o.Interface, Owner: "the kernel, as a WireGuard link of ours",
			Do: "the userspace device is asked for, from another process: delete the interface"}
	}
	if d == nil { // ours, of a kind that is not wanted any more
		o.Log.Info("replacing the kernel's WireGuard link by the userspace device", "interface", o.Interface)
		if err := netlink.LinkDel(link); err != nil {
			return nil, fmt.Errorf("interface %s: remove the kernel's WireGuard link: %w", o.Interface, err)
		}
		return create(ctx, o)
	}
	if err := checkPort(o); err != nil {
		return nil, err
	}
	if link.Attrs().Alias != state.LinkAlias {
		if err := mark(link); err != nil {
			return nil, err
		}
		o.Log.Info("WireGuard link adopted", "interface", o.Interface, "kind", d.kind)
	}
	return d, nil
}

// create makes the link that is not there.
func create(ctx context.Context, o Options) (*Device, error) {
	if err := checkSocket(ctx, o.Interface); err != nil {
		return nil, err
	}
	if err := checkPort(o); err != nil {
		return nil, err
	}
	if o.Mode != Userspace {
		err := createKernel(o)
		switch {
		case err == nil:
			o.Log.Info("WireGuard link made", "interface", o.Interface, "kind", Kernel)
			return &Device{kind: Kernel}, nil
		case errors.Is(err, unix.EEXIST):
			return nil, fmt.Errorf("interface %s appeared while it was being made; trying again is safe", o.Interface)
		case !errors.Is(err, unix.EOPNOTSUPP):
			return nil, fmt.Errorf("interface %s: make a kernel WireGuard link: %w", o.Interface, err)
		case o.Mode == Kernel:
			return nil, fmt.Errorf("interface %s: this kernel has no WireGuard (%w), and the kernel's device is asked for; load the module wireguard, or allow %q or %q", o.Interface, err, Auto, Userspace)
		}
	}
	u, err := startUserspace(o)
	if err != nil {
		return nil, err
	}
	o.Log.Info("WireGuard link made", "interface", o.Interface, "kind", Userspace)
	return &Device{kind: Userspace, user: u}, nil
}

func notThere(o Options) error {
	return fmt.Errorf("interface %s is %w: another process is to make it (kg wireguard)", o.Interface, ErrNotThere)
}

// starting tells whether a TUN interface may be that of a device which has just
// been made: it is down and has our alias, or none yet.
func starting(link netlink.Link) bool {
	a := link.Attrs()
	return a.Flags&net.FlagUp == 0 && (a.Alias == "" || a.Alias == state.LinkAlias)
}

func createKernel(o Options) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = o.Interface, o.MTU
	if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return err
	}
	// The kernel takes an alias for existing links only.
	link, err := netlink.LinkByName(o.Interface)
	if err != nil {
		return err
	}
	return mark(link)
}

// mark writes our alias, by which later processes know the link.
func mark(link netlink.Link) error {
	if err := netlink.LinkSetAlias(link, state.LinkAlias); err != nil {
		return fmt.Errorf("interface %s: set alias %q: %w", link.Attrs().Name, state.LinkAlias, err)
	}
	return nil
}

// adopt decides about a link that is there. It returns nil without an error
// for a link of ours that has to be replaced.
func adopt(o Options, link netlink.Link) (*Device, error) {
	switch link.Type() {
	case "wireguard":
		if err := adoptable(o, link, "a kernel WireGuard link"); err != nil {
			return nil, err
		}
		if o.Mode == Userspace {
			return nil, nil
		}
		return &Device{kind: Kernel}, nil
	case "tuntap":
		server, err := servedBy(o.Interface)
		if err != nil {
			return nil, err
		}
		if server == nil && o.External && starting(link) {
			return nil, notThere(o) // its process is about to open the control socket
		}
		if server == nil {
			return nil, &Foreign{What: "interface " + o.Interface, Owner: tunOwner(o.Interface),
				Do: "end it, delete the interface, or choose another name with --interface"}
		}
		if err := adoptable(o, link, server.String()); err != nil {
			return nil, err
		}
		if o.Mode == Kernel {
			return nil, &Foreign{What: "interface " + o.Interface, Owner: server.String() + " as a userspace device",
				Do: "the kernel's device is asked for: end that process first"}
		}
		return &Device{kind: Userspace}, nil
	}
	return nil, &Foreign{What: "interface " + o.Interface, Owner: fmt.Sprintf("somebody else, as a link of kind %q", kindName(link)),
		Do: "delete or rename it, or choose another name with --interface"}
}

// adoptable tells whether a WireGuard device is ours: by our alias, by our
// key, or because it holds nothing of anybody's yet.
func adoptable(o Options, link netlink.Link, owner string) error {
	if link.Attrs().Alias == state.LinkAlias {
		return nil
	}
	d, err := deviceByName(o.Interface)
	if err != nil {
		return err
	}
	key := model.Key(d.PublicKey)
	blank := d.PrivateKey == [model.KeyLen]byte{} && len(d.Peers) == 0
	if blank || !o.Key.IsZero() && key == o.Key {
		return nil
	}
	return &Foreign{What: "interface " + o.Interface, Owner: fmt.Sprintf("%s with public key %s, which is not this node's", owner, key),
		Do: "delete it, or choose another name with --interface"}
}

// checkSocket makes sure that no other process serves a device of this name
// whose interface we cannot see.
func checkSocket(ctx context.Context, name string) error {
	for deadline := time.Now().Add(2 * time.Second); ; {
		server, err := servedBy(name)
		if err != nil || server == nil {
			return err
		}
		// Our own device whose interface was just deleted is still going down.
		if !server.self() || time.Now().After(deadline) {
			return &Foreign{What: "socket " + socketPath(name), Owner: server.String() + ", whose interface is not in this network namespace",
				Do: "end it, or give this process a /var/run/wireguard of its own"}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// checkPort refuses a UDP port that somebody else listens on.
func checkPort(o Options) error {
	if o.Port == 0 {
		return nil
	}
	owner, err := PortOwner(o.Port, o.Interface)
	if err != nil || owner == "" {
		return err
	}
	return &Foreign{What: fmt.Sprintf("UDP port %d", o.Port), Owner: owner, Do: "end it, or choose another port with --port"}
}

func isNotFound(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError))
}

func kindName(link netlink.Link) string {
	if t := link.Type(); t != "device" {
		return t
	}
	return "hardware"
}
