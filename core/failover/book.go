package failover

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// steps is by how much an epoch may grow at once: a broken or malicious node must
// not use the numbers up.
const steps = 16

// Claim says who serves a location.
type Claim struct {
	Node  string `json:"node"`
	Epoch uint64 `json:"epoch"`
}

// Book keeps the claims that were heard, by location. It is for one goroutine.
type Book struct {
	claims map[string]Claim
	coming map[string]coming
}

// coming is a claim that is about to be made, and how long that is believed.
type coming struct {
	Claim
	until time.Time
}

// Hear takes a claim and tells whether it is news. s says who stands by for the
// location and what was claimed there so far; the error says why nobody else would
// be believed.
func (b *Book) Hear(s *model.Snapshot, location string, c Claim) (news bool, err error) {
	if news, err = b.judge(s, location, c); !news {
		return false, err
	}
	if b.claims == nil {
		b.claims = map[string]Claim{}
	}
	b.claims[location] = c
	return true, nil
}

// Expect takes a claim that is about to be made, because of nothing that failed, and
// tells whether it is news and believed: as far as Hear would believe it, until then.
func (b *Book) Expect(s *model.Snapshot, location string, c Claim, until time.Time) (news bool, err error) {
	if ahead, err := b.judge(s, location, c); !ahead {
		return false, err
	}
	if b.coming == nil {
		b.coming = map[string]coming{}
	}
	news = b.coming[location].Claim != c
	b.coming[location] = coming{c, until}
	return news, nil
}

// Forget drops what was expected and did not come, and tells whether there was any.
// A clock that is set back keeps it for no longer than most.
func (b *Book) Forget(now time.Time, most time.Duration) (dropped bool) {
	for location, c := range b.coming {
		if !now.Before(c.until) || c.until.Sub(now) > most {
			delete(b.coming, location)
			dropped = true
		}
	}
	return dropped
}

// judge tells whether a claim is above what is known, and may be believed.
func (b *Book) judge(s *model.Snapshot, location string, c Claim) (news bool, err error) {
	n := s.Node(c.Node)
	if n == nil || !n.Spoken || n.Location != location {
		return false, fmt.Errorf("node %s claims to serve location %q and is not one of its nodes", c.Node, location)
	}
	known := b.Of(s, location)
	switch {
	case c.Epoch < known.Epoch || c == known:
		return false, nil
	case c.Epoch == known.Epoch && c.Node > known.Node:
		return false, nil // two at once: the lower name serves
	case n.Slot == 0:
		return false, fmt.Errorf("node %s claims to serve location %q and does not stand by for it", c.Node, location)
	case c.Epoch > known.Epoch+steps:
		return false, fmt.Errorf("node %s claims to serve location %q under epoch %d, known is %d", c.Node, location, c.Epoch, known.Epoch)
	}
	return true, nil
}

// Of is the highest claim of a location, published or heard.
func (b *Book) Of(s *model.Snapshot, location string) Claim {
	best := b.claims[location]
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Location == location && (n.Epoch > best.Epoch || n.Epoch == best.Epoch && n.Epoch > 0 && n.Name < best.Node) {
			best = Claim{n.Name, n.Epoch}
		}
	}
	return best
}

// Apply returns s with the claims that were heard in the place of older published
// ones, and with those marked that are about to serve. s itself is left as it is.
func (b *Book) Apply(s model.Snapshot) model.Snapshot {
	copied := false
	change := func(location, name string, which func(*model.Node) bool, how func(*model.Node)) {
		for i := range s.Nodes {
			if n := &s.Nodes[i]; n.Name == name && n.Location == location && which(n) {
				if !copied {
					s.Nodes, copied = append([]model.Node(nil), s.Nodes...), true
				}
				how(&s.Nodes[i])
			}
		}
	}
	for location, c := range b.coming {
		if c.Epoch > b.Of(&s, location).Epoch {
			change(location, c.Node, func(n *model.Node) bool { return n.Spoken }, func(n *model.Node) { n.Next = true })
		}
	}
	for location, c := range b.claims {
		change(location, c.Node, func(n *model.Node) bool { return n.Epoch < c.Epoch }, func(n *model.Node) { n.Epoch = c.Epoch })
	}
	return s
}

// Heard returns the claim that was heard of a location, if one was.
func (b *Book) Heard(location string) (c Claim, ok bool) {
	c, ok = b.claims[location]
	return c, ok
}

// MarshalJSON and UnmarshalJSON keep a Book on disk: agents that start without an
// API server must not go back to a gateway that is gone.
func (b *Book) MarshalJSON() ([]byte, error) { return json.Marshal(b.claims) }

// UnmarshalJSON reads what MarshalJSON wrote. A claim that nothing could follow is
// left out.
func (b *Book) UnmarshalJSON(raw []byte) error {
	err := json.Unmarshal(raw, &b.claims)
	maps.DeleteFunc(b.claims, func(_ string, c Claim) bool { return c.Epoch > model.MaxEpoch })
	return err
}
