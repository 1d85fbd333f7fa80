package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

// cut ends the connections of Peers that are Peers no more. The tunnel takes
// nothing from them once their key is gone; what conntrack still knows would let
// translated answers go on, and whoever gets the address next would inherit them.
func (a *Agent) cut(ctx context.Context, w *world) error {
	now := peerPrefixes(&w.snapshot)
	before := a.outsiders
	gone := slices.DeleteFunc(slices.Clone(before), func(p netip.Prefix) bool {
		_, still := slices.BinarySearchFunc(now, p, netip.Prefix.Compare)
		return still
	})
	if len(gone) == 0 {
		a.outsiders = now
		return nil
	}
	n, err := a.Kernel.Cut(ctx, gone)
	if err != nil {
		return err // again with the next pass
	}
	a.outsiders = now
	a.Log.Info("no longer a Peer's", "prefixes", gone, "connectionsCut", n)
	return nil
}

// peerPrefixes are the prefixes of all Peers, sorted, default routes left out: the
// connections that go by them are everybody's.
func peerPrefixes(s *model.Snapshot) []netip.Prefix {
	var out []netip.Prefix
	for i := range s.Peers {
		for _, p := range s.Peers[i].AllowedIPs {
			if p.Bits() > 0 {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
