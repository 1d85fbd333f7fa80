package agent

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// home is where a node is in the networks around it.
type home struct {
	addresses []netip.Addr // sorted
	devices   []string     // of default routes
}

// homeOf leaves out the mesh's own links and what only means this host.
func homeOf(h model.Host, iface string) home {
	out := home{devices: h.DefaultDevices}
	for _, l := range h.Interfaces {
		if !l.Up || slices.Contains(state.TunnelLinks(iface), l.Name) || l.Name == state.VXLANLink {
			continue
		}
		for _, p := range l.Addresses {
			if a := p.Addr().Unmap(); a.IsGlobalUnicast() {
				out.addresses = append(out.addresses, a)
			}
		}
	}
	slices.SortFunc(out.addresses, netip.Addr.Compare)
	return out
}

func (h home) has(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(h.addresses, a, netip.Addr.Compare)
	return found
}

// moved notices that the node has other addresses than in the last pass, or
// other ways out. The other ends go on sending to where it was: nothing comes in
// any more that would have to be answered, and whoever has nothing to say
// himself is not heard where he is now. So it speaks to all of them.
func (a *Agent) moved(w *world, now time.Time) {
	before, here := a.home, homeOf(w.host, a.Interface)
	a.home = &here
	if before == nil || slices.Equal(before.addresses, here.addresses) && slices.Equal(before.devices, here.devices) {
		return
	}
	a.greeter.Moved(w.heard, now)
	gone := func(at netip.Addr) bool { return before.has(at) && !here.has(at) }
	if i := slices.IndexFunc(before.addresses, gone); i >= 0 {
		a.Log.Info("this node has other addresses", "gone", slices.DeleteFunc(slices.Clone(before.addresses), here.has), "now", here.addresses)
		a.Cluster.AddressesGone(gone)
	}
}

// published is where a peer is published to be, and was before.
type published struct{ now, before netip.AddrPort }

// follow marks those peers whose published endpoint is news. A live peer is
// left where it speaks from, but one that is where it was published to be has
// not roamed, and goes where it is published to be now. (The address behind a
// name may change at a router that the node itself knows nothing of.) known is
// from the last pass; follow returns it for the next.
func follow(w *world, peers []*state.Peer, known map[model.Key]published) map[model.Key]published {
	if len(peers) == 0 {
		return known
	}
	heard := make(map[model.Key]netip.AddrPort, len(w.heard))
	for i := range w.heard {
		heard[w.heard[i].Key] = w.heard[i].Endpoint
	}
	next := make(map[model.Key]published, len(peers))
	for _, p := range peers {
		if !p.Endpoint.IsValid() || publishesNone(&w.snapshot, p.Key) {
			continue
		}
		at := known[p.Key]
		if at.now != p.Endpoint {
			at = published{now: p.Endpoint, before: at.now}
		}
		if heard[p.Key] == at.now {
			at.before = netip.AddrPort{}
		}
		p.Moved = at.before.IsValid() && heard[p.Key] == at.before
		next[p.Key] = at
	}
	return next
}
