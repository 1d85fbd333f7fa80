package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Options say what a Kernel is for.
type Options struct {
	// Interface is the first WireGuard link's name; state.TunnelLink has the
	// others'.
	Interface string
	// PrivateKey is given to the WireGuard links. It is a secret: nothing here
	// prints it.
	PrivateKey wgtypes.Key
	// Ensure makes the WireGuard link of that name where SetLink finds none;
	// nil: that is an error. core/wireguard.Ensure does it.
	Ensure func(ctx context.Context, name string, port uint16) error
	// Log is where the few things go that are no error; nil: slog.Default().
	Log *slog.Logger
}

// Format keeps every way of printing Options from showing the key.
func (o Options) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "{Interface:%s}", o.Interface) }

// Kernel reads and writes what is ours in this node's kernel. It implements
// apply.Kernel. Observe, Host, Peers and Watch may run while Apply does; Apply
// is for one caller at a time.
type Kernel struct {
	tunnels []string // names of the WireGuard links that may be ours
	public  model.Key
	// private hands out the key; a function does not print it.
	private func() wgtypes.Key
	ensure  func(ctx context.Context, name string, port uint16) error
	log     *slog.Logger
	// routes asks for routes with the kernel doing the filtering.
	routes *netlink.Handle
}

// New returns a Kernel for the network namespace of this process.
func New(o Options) (*Kernel, error) {
	if o.Interface == "" {
		return nil, errors.New("kernel: no interface name")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("kernel: open a netlink socket: %w", err)
	}
	// Without strict checks (Linux < 4.20) every dump of a table is one of all
	// tables; the library filters again, so that is only slower.
	_ = routes.SetStrictCheck(true)
	return &Kernel{
		tunnels: state.TunnelLinks(o.Interface),
		public:  model.Key(o.PrivateKey.PublicKey()),
		private: func() wgtypes.Key { return o.PrivateKey },
		ensure:  o.Ensure,
		log:     o.Log,
		routes:  routes,
	}, nil
}

// Close releases the Kernel's sockets. It changes nothing in the kernel.
func (k *Kernel) Close() { k.routes.Close() }

// Observe returns what is ours. What could not be read is missing from the
// State and named in the error.
func (k *Kernel) Observe(ctx context.Context) (state.State, error) {
	var s state.State
	if err := ctx.Err(); err != nil {
		return s, err
	}
	var errs []error
	fail := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	names, err := newNames()
	fail(err)
	s.Links, err = k.observeLinks(names)
	fail(err)
	s.Routes, err = k.observeRoutes(names)
	fail(err)
	s.Rules, err = observeRules()
	fail(err)
	s.Filter, err = observeFilter()
	fail(err)
	return s, errors.Join(errs...)
}

// Apply makes one Change.
func (k *Kernel) Apply(ctx context.Context, c state.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch c := c.(type) {
	case state.SetLink:
		return k.setLink(ctx, c.Link)
	case state.DeleteLink:
		return k.deleteLink(c.Name)
	case state.SetPeer:
		return k.setPeer(c)
	case state.DeletePeer:
		return k.deletePeer(c)
	case state.SetRoute:
		return setRoute(c.Route)
	case state.DeleteRoute:
		return k.deleteRoute(c.Route)
	case state.AddRule:
		return addRule(c.Rule)
	case state.DeleteRule:
		return deleteRule(c.Rule)
	case state.SetFilter:
		return setFilter(c.Filter)
	}
	return fmt.Errorf("no way to make a change of type %T", c)
}

// names tells interfaces' names by their index, as they were at one moment.
type names map[int]string

func newNames() (names, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	n := make(names, len(links))
	for _, l := range links {
		n[l.Attrs().Index] = l.Attrs().Name
	}
	return n, nil
}

// dump asks again when the kernel says that the answer changed while it was
// being given.
func dump[T any](ask func() (T, error)) (answer T, err error) {
	for range 10 {
		if answer, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return answer, err
		}
	}
	return answer, err
}

// noIPv6 tells whether err means that this kernel runs without IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

func isNotFound(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError))
}
