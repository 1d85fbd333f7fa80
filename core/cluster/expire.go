package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// PeerExpired is the kind of warning about a Peer whose access has ended.
const PeerExpired = "PeerExpired"

// Expire leaves out the Peers whose access has ended at now, and says when the
// next one's does; zero: none's. It leaves s as it is.
func Expire(s model.Snapshot, now time.Time) (out model.Snapshot, warnings []model.Warning, next time.Time) {
	ended := func(p model.Peer) bool { return !p.ExpiresAt.IsZero() && !now.Before(p.ExpiresAt) }
	for _, p := range s.Peers {
		switch {
		case p.ExpiresAt.IsZero():
		case ended(p):
			warnings = append(warnings, model.Warning{Kind: PeerExpired, Object: "peer/" + p.Name, Message: fmt.Sprintf(
				"spec.expiresAt: the Peer's access ended at %s; delete it, or give it more time", p.ExpiresAt.Format(time.RFC3339))})
		case next.IsZero() || p.ExpiresAt.Before(next):
			next = p.ExpiresAt
		}
	}
	if len(warnings) > 0 {
		s.Peers = slices.DeleteFunc(slices.Clone(s.Peers), ended)
	}
	return s, warnings, next
}
