package kerneltest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Kernel is a kernel in memory. It may be used from several goroutines.
type Kernel struct {
	// BeforeApply, where set, is asked before each Change is made; an error
	// keeps it from being made. AfterObserve is shown what was observed; it may
	// take things out and return an error, which is how a partial observation
	// looks. Set both before the Kernel is used.
	BeforeApply  func(state.Change) error
	AfterObserve func(*state.State) error

	mu    sync.Mutex
	wg    string    // name of the WireGuard link
	key   model.Key // public key of the private key that we hold
	links map[string]*link
	// loopback are our addresses on that link.
	loopback []netip.Prefix
	routes   []route
	rules    []rule
	filter   state.Filter
	made     []state.Change
}

var _ apply.Kernel = (*Kernel)(nil)

// link is any link, ours or not. It is ours if it has one of our names and
// nobody else made it.
type link struct {
	state.Link
	foreign bool
}

// route is any route, ours or not.
type route struct {
	state.Route
	protocol int
}

// rule is any rule, ours or not.
type rule struct {
	state.Rule
	protocol int
}

// Protocols of routes and rules that are not ours (rtm_protocol).
const (
	protocolKernel = 2
	protocolStatic = 4
)

// New returns a kernel with loopback alone. It can make a WireGuard link named
// wireguard, for which it holds the private key that belongs to key.
func New(wireguard string, key model.Key) *Kernel {
	k := &Kernel{wg: wireguard, key: key, links: map[string]*link{}}
	k.links["lo"] = &link{foreign: true, Link: state.Link{Name: "lo", Kind: "loopback", MTU: 65536, Addresses: []netip.Prefix{
		netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128"),
	}}}
	return k
}

// ours tells whether a link of that name is ours.
func (k *Kernel) ours(name string) bool {
	return slices.Contains(state.TunnelLinks(k.wg), name) || name == state.VXLANLink
}

// Observe returns what is ours.
func (k *Kernel) Observe(ctx context.Context) (state.State, error) {
	if err := ctx.Err(); err != nil {
		return state.State{}, err
	}
	s := k.observe()
	if k.AfterObserve != nil {
		if err := k.AfterObserve(&s); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (k *Kernel) observe() state.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	var s state.State
	for name, l := range k.links {
		if k.ours(name) && !l.foreign {
			s.Links = append(s.Links, clone(l.Link))
		}
	}
	if len(k.loopback) > 0 {
		s.Links = append(s.Links, state.Link{Name: state.LoopbackLink, Kind: state.Loopback, Addresses: slices.Clone(k.loopback)})
	}
	for _, r := range k.routes {
		if ourTable(r.Table) && r.protocol == state.Protocol {
			s.Routes = append(s.Routes, r.Route)
		}
	}
	for _, r := range k.rules {
		if ourPriority(r.Priority) && r.protocol == state.Protocol {
			s.Rules = append(s.Rules, r.Rule)
		}
	}
	s.Filter = k.filter
	s.Normalize()
	return s
}

// Apply makes one Change, whole or not at all.
func (k *Kernel) Apply(ctx context.Context, c state.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if k.BeforeApply != nil {
		if err := k.BeforeApply(c); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.apply(c); err != nil {
		return err
	}
	k.made = append(k.made, c)
	return nil
}

func (k *Kernel) apply(c state.Change) error {
	switch c := c.(type) {
	case state.SetLink:
		return k.setLink(clone(c.Link))
	case state.DeleteLink:
		return k.deleteOurLink(c.Name)
	case state.SetPeer:
		return k.setPeer(c)
	case state.DeletePeer:
		return k.deletePeer(c)
	case state.SetRoute:
		return k.setRoute(c.Route)
	case state.DeleteRoute:
		return k.deleteRoute(c.Route)
	case state.AddRule:
		return k.addRule(c.Rule)
	case state.DeleteRule:
		return k.deleteRule(c.Rule)
	case state.SetFilter:
		return k.setFilter(c.Filter)
	}
	return fmt.Errorf("unknown change %T", c)
}

// Made returns the Changes made since it was last asked, in order.
func (k *Kernel) Made() []state.Change {
	k.mu.Lock()
	defer k.mu.Unlock()
	made := k.made
	k.made = nil
	return made
}

// clone copies what a Link points to.
func clone(l state.Link) state.Link {
	l.Addresses = slices.Clone(l.Addresses)
	if l.Tunnel != nil {
		t := *l.Tunnel
		t.Peers = slices.Clone(t.Peers)
		for i := range t.Peers {
			t.Peers[i].AllowedIPs = slices.Clone(t.Peers[i].AllowedIPs)
		}
		l.Tunnel = &t
	}
	if l.VXLAN != nil {
		v := *l.VXLAN
		v.Remotes = slices.Clone(v.Remotes)
		l.VXLAN = &v
	}
	return l
}

// sortedLinks lists all links by name.
func (k *Kernel) sortedLinks() []*link {
	links := make([]*link, 0, len(k.links))
	for _, l := range k.links {
		links = append(links, l)
	}
	slices.SortFunc(links, func(a, b *link) int { return cmp.Compare(a.Name, b.Name) })
	return links
}
