package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Location is a group of nodes that reach each other without the mesh.
type Location struct {
	Name string
	// Nodes are all nodes of the location, sorted by name, those without an
	// agent included.
	Nodes []*model.Node
	// Candidates are the nodes that could serve as gateway, best first.
	Candidates []*model.Node
	// Gateway serves: it carries the location's traffic to other locations. Nil
	// while no node of the location has an agent.
	Gateway *model.Node
	// Claimed tells that Gateway recorded a claim; otherwise it is merely the
	// best candidate so far.
	Claimed bool
	// Armed are the nodes that are prepared to serve, the gateway among them, by
	// the number of the link on which others have them as peers; nil: nobody.
	Armed [state.TunnelSlots]*model.Node
}

// Mesh is a Snapshot with its nodes grouped, which is where every decision begins:
// a pass has several to make.
type Mesh struct {
	Locations []Location
	snapshot  model.Snapshot
}

// NewMesh groups the nodes of s.
func NewMesh(s model.Snapshot) *Mesh { return &Mesh{Locations: Locations(s), snapshot: s} }

// Locations groups the nodes of s, sorted by name. All nodes compute the same
// from the same Snapshot.
func Locations(s model.Snapshot) []Location {
	count := make(map[string]int)
	for i := range s.Nodes {
		count[s.Nodes[i].Location]++
	}
	index := make(map[string]int, len(count))
	out := make([]Location, 0, len(count))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		at, ok := index[n.Location]
		if !ok {
			at = len(out)
			index[n.Location] = at
			out = append(out, Location{Name: n.Location, Nodes: make([]*model.Node, 0, count[n.Location])})
		}
		out[at].Nodes = append(out[at].Nodes, n)
	}
	slices.SortFunc(out, func(a, b Location) int { return cmp.Compare(a.Name, b.Name) })
	for i := range out {
		out[i].elect()
		out[i].arm()
	}
	return out
}

func (l *Location) elect() {
	l.Candidates = make([]*model.Node, 0, len(l.Nodes))
	for _, n := range l.Nodes {
		if n.Spoken && !n.Key.IsZero() {
			l.Candidates = append(l.Candidates, n)
		}
	}
	slices.SortStableFunc(l.Candidates, func(a, b *model.Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	// The record decides: the highest epoch, at equal epochs the lower name.
	for _, n := range l.Candidates {
		switch g := l.Gateway; {
		case n.Epoch == 0:
		case g == nil || n.Epoch > g.Epoch || n.Epoch == g.Epoch && n.Name < g.Name:
			l.Gateway, l.Claimed = n, true
		}
	}
	if l.Gateway != nil {
		return
	}
	// Nobody claimed yet. All nodes take the best candidate meanwhile, one
	// that is ready if there is any.
	if best := l.bestReady(nil); best != nil {
		l.Gateway = best
	} else if len(l.Candidates) > 0 {
		l.Gateway = l.Candidates[0]
	}
}

func (l *Location) bestReady(except *model.Node) *model.Node {
	for _, n := range l.Candidates {
		if n.Ready && n != except {
			return n
		}
	}
	return nil
}

// rank orders candidates for gateway; lower is better.
func rank(n *model.Node) int {
	public := !n.Endpoint.IsZero()
	switch {
	case n.Leader && public:
		return 0
	case n.Leader:
		return 1
	case public && n.ForcedEndpoint:
		return 2
	case public:
		return 3
	}
	return 4
}

// locationOf returns the location of that name, or nil.
func locationOf(ls []Location, name string) *Location {
	i, ok := slices.BinarySearchFunc(ls, name, func(l Location, name string) int { return cmp.Compare(l.Name, name) })
	if !ok {
		return nil
	}
	return &ls[i]
}

// ClaimResult is what a node should record about serving as gateway.
type ClaimResult struct {
	// Epoch and Asked are to be published. Without a claim Epoch is what the
	// node published already.
	Epoch uint64
	Asked string
	// Claims tells that Epoch is a new claim; Reason says why, for the log and
	// an Event.
	Claims bool
	Reason string
	// First tells that nobody served the location before. The agent holds such
	// a claim back until the location's nodes had time to speak, since a first
	// gateway keeps the task however good a candidate comes later.
	First bool
	// Failed tells that the serving gateway's Node is not ready. The agent holds
	// such a claim back as well: after an API server's absence every Node is
	// called not ready for some seconds, and they recover one by one.
	Failed bool
}

// The wishes a node can have to serve as gateway, in Asked's words.
const (
	wishLeader         = "leader"
	wishForcedEndpoint = "force-endpoint"
	wishEndpoint       = "endpoint"
)

// wishes lists what speaks for n as gateway.
func wishes(n *model.Node) []string {
	var w []string
	if n.Leader {
		w = append(w, wishLeader)
	}
	if n.ForcedEndpoint {
		w = append(w, wishForcedEndpoint)
	}
	if !n.Endpoint.IsZero() {
		w = append(w, wishEndpoint)
	}
	return w
}

// Claim decides whether the node called self should claim to serve as gateway
// of its location. Serving is sticky: a gateway changes when it fails (before
// probes exist: when its Node turns NotReady) or when someone asks. Asking is
// a wish that the node newly has and the serving gateway has not: the leader
// annotation, a forced endpoint, or any endpoint where the gateway has none.
// It counts once: what was acted upon is recorded in Asked, so that a node
// that comes back never pre-empts.
func (m *Mesh) Claim(self string) ClaimResult {
	me := m.snapshot.Node(self)
	if me == nil {
		return ClaimResult{}
	}
	have := wishes(me)
	out := ClaimResult{Epoch: me.Epoch, Asked: strings.Join(have, ",")}
	if !me.Spoken || !me.Ready {
		// Wishes are kept for later: a node that cannot serve does not ask.
		out.Asked = me.Asked
		return out
	}
	l := locationOf(m.Locations, me.Location)
	serving := l.Gateway
	claim := func(format string, args ...any) ClaimResult {
		out.Epoch, out.Claims, out.Reason = highest(l)+1, true, fmt.Sprintf(format, args...)
		return out
	}
	switch {
	case serving == nil:
		return out
	case !l.Claimed:
		if serving == me {
			out.First = true
			return claim("nobody serves location %q and %s is its best candidate", l.Name, self)
		}
		return out
	case serving == me:
		return out
	case !serving.Ready:
		if l.bestReady(serving) == me {
			out.Failed = true
			return claim("gateway %s of location %q is not ready and %s is the next candidate", serving.Name, l.Name, self)
		}
		return out
	}
	asked, theirs := strings.Split(me.Asked, ","), wishes(serving)
	for _, w := range have {
		if !slices.Contains(asked, w) && !slices.Contains(theirs, w) && rank(me) < rank(serving) {
			return claim("%s newly has %q, which gateway %s of location %q has not", self, w, serving.Name, l.Name)
		}
	}
	return out
}

func highest(l *Location) (epoch uint64) {
	for _, n := range l.Nodes {
		epoch = max(epoch, n.Epoch)
	}
	return epoch
}
