package kerneltest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// What somebody else does to the kernel, and what the network does.

// AddLink makes somebody else's link, up, with addresses and what they bring
// into main. It may take a name of ours.
func (k *Kernel) AddLink(name string, addresses ...netip.Prefix) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.links[name] = &link{foreign: true, Link: state.Link{Name: name, Kind: "veth", MTU: 1500, Addresses: slices.Clone(addresses)}}
	for _, a := range addresses {
		k.addConnected(name, a)
	}
}

// RemoveLink deletes a link, whosever it is.
func (k *Kernel) RemoveLink(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deleteLink(name)
}

// TakeDown takes a link down: all its routes go.
func (k *Kernel) TakeDown(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.links[name]; l != nil {
		l.Down = true
		k.dropRoutes(func(r *route) bool { return r.Device == name })
	}
}

// AddRoute adds somebody else's route (protocol static), to any table.
func (k *Kernel) AddRoute(r state.Route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.checkRoute(r); err != nil {
		return err
	}
	return k.insert(route{r, protocolStatic}, false)
}

// AddRule adds somebody else's rule.
func (k *Kernel) AddRule(r state.Rule) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rules = append(k.rules, rule{r, protocolStatic})
}

// FlushChain empties a chain of our table.
func (k *Kernel) FlushChain(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := state.Filter{Sets: k.filter.Sets, Chains: slices.Clone(k.filter.Chains)}
	for i := range f.Chains {
		if f.Chains[i].Name == name {
			f.Chains[i].Rules = nil
		}
	}
	k.filter = f
}

// Handshake lets a peer of the WireGuard link be heard from an address: it is
// alive there. It reports whether there is such a peer.
func (k *Kernel) Handshake(peer model.Key, from netip.AddrPort) bool {
	return k.hear(peer, func(p *state.Peer) { p.Alive, p.Endpoint = true, from })
}

// Silence lets a peer not be heard for longer than a session lasts.
func (k *Kernel) Silence(peer model.Key) bool {
	return k.hear(peer, func(p *state.Peer) { p.Alive = false })
}

func (k *Kernel) hear(peer model.Key, set func(*state.Peer)) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, err := k.tunnel(k.wg)
	if err != nil {
		return false
	}
	p := find(t, peer)
	if p != nil {
		set(p)
	}
	return p != nil
}

// Everything prints all there is, ours and not, in one order.
func (k *Kernel) Everything() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var lines []string
	for _, l := range k.sortedLinks() {
		lines = append(lines, l.Link.String())
	}
	for _, a := range k.loopback {
		lines = append(lines, "lo addr "+a.String()+" ours")
	}
	routes := slices.Clone(k.routes)
	slices.SortStableFunc(routes, func(a, b route) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), a.Dst.Compare(b.Dst), cmp.Compare(a.Metric, b.Metric))
	})
	for _, r := range routes {
		lines = append(lines, fmt.Sprintf("%s proto %d", r.Route, r.protocol))
	}
	rules := slices.Clone(k.rules)
	slices.SortStableFunc(rules, func(a, b rule) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, r := range rules {
		lines = append(lines, fmt.Sprintf("%s proto %d", r.Rule, r.protocol))
	}
	return strings.Join(lines, "\n") + "\n" + k.filter.String()
}

// WireGuard returns the name and the public key given to New.
func (k *Kernel) WireGuard() (string, model.Key) { return k.wg, k.key }

// FilterText prints our table as nft would; "" where there is none.
func (k *Kernel) FilterText() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.filter.String()
}
