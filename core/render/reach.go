package render

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// reach is what a party outside the cluster reaches through one location.
type reach struct {
	plan.Location
	// Learned is where another node heard the gateway, which publishes no
	// endpoint itself; zero where it publishes one or nobody heard it.
	Learned model.Endpoint
	// Prefixes are the location's: those that the planner gives to it.
	Prefixes []netip.Prefix
}

// outsider is a name that no Node or location can have, since annotations and
// object names hold no control characters.
const outsider = "\x00outside"

// reachable asks the planner what reaches what. It plans for a node that is
// not there, alone in a location of its own: what that node's tunnel would
// hold is what an outsider reaches, conflicts between prefixes decided as
// every node decides them.
func reachable(s model.Snapshot) []reach {
	key := model.Key{}
	for i := range key {
		key[i] = 0xff // no point on the curve has this form
	}
	observer := model.Node{
		Name: outsider, Location: outsider, Ready: true, Spoken: true, Key: key,
		// The planner wants an address. This one is nobody's (RFC 7600).
		InternalIPs: []netip.Prefix{netip.MustParsePrefix("192.0.0.8/32")},
	}
	s.Nodes = append([]model.Node{observer}, s.Nodes...)
	wanted, report := plan.Plan(s, plan.Facts{Self: outsider, Key: key, AdapterKnown: true}, nil)

	var out []reach
	for _, l := range report.Locations {
		if l.Name != outsider {
			out = append(out, reach{Location: l})
		}
	}
	for _, p := range wanted.Peers() {
		name, isNode := strings.CutPrefix(p.Name, "node/")
		i := slices.IndexFunc(out, func(r reach) bool { return r.Gateway != nil && r.Gateway.Name == name })
		if !isNode || i < 0 { // a gateway that stands by carries nothing
			continue
		}
		out[i].Prefixes = p.AllowedIPs
		if out[i].Gateway.Endpoint.IsZero() && p.Endpoint.IsValid() {
			out[i].Learned = model.Endpoint{Addr: p.Endpoint.Addr(), Port: p.Endpoint.Port()}
		}
	}
	return out
}
