package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kilo-overlay/kilo/core/state"
)

// minIPv6MTU is what every way for IPv6 has to carry (RFC 8200, section 5); the
// kernel takes no less for a route.
const minIPv6MTU = 1280

// tellNarrowPaths warns of ways on which something drops what is too large for it
// and does not say so.
func (p *planner) tellNarrowPaths() {
	for _, name := range slices.Sorted(maps.Keys(p.facts.PathMTU)) {
		n, measured := p.snapshot.Node(name), p.facts.PathMTU[name]
		if n == nil || measured >= min(n.TunnelMTU, p.facts.TunnelMTU) {
			continue
		}
		p.warn("PathMTU", "node/"+p.self.Name,
			"packets of more than %d bytes do not reach node %s through the tunnel, whose two ends would carry %d: something between them drops what is too large for it, and does not say so. What is sent there is made to fit; better mend the network between, or give the interfaces at both ends its MTU",
			measured, name, min(n.TunnelMTU, p.facts.TunnelMTU))
	}
}

// adviseMTU says what MTU the host CNI should give its pods: what the narrowest
// way from here carries, less what the CNI itself adds to a pod's packet on it. A
// route's MTU is that of its whole path, the way to the own gateway included.
func (p *planner) adviseMTU() {
	p.tellNarrowPaths()
	var narrowest *state.Route
	for i := range p.state.Routes {
		r := &p.state.Routes[i]
		if r.Table == state.TableOverlay && r.MTU > 0 && (narrowest == nil || r.MTU < narrowest.MTU) {
			narrowest = r
		}
	}
	if narrowest == nil {
		return
	}
	best := narrowest.MTU - p.facts.Adapter.PodOverhead
	p.report.PodMTU = best
	if p.facts.Adapter.PodMTU <= best {
		return
	}
	do := "give pods that MTU in the CNI's configuration"
	if set := p.facts.Adapter.PodMTUSetting; set.Where != "" {
		do = fmt.Sprintf("set %s to %d; pods get it when they are made anew", set.Where, best+set.Add)
	}
	what := "TCP is made to fit; anything else that is larger is refused and has to be sent again"
	if p.facts.Adapter.PodOverhead > 0 {
		what = fmt.Sprintf("Inside the CNI's own tunnel, which adds %d, larger packets, TCP's too, travel in two pieces, at a fraction of the throughput", p.facts.Adapter.PodOverhead)
	}
	// Not which way is the narrowest: that changes while nodes come and go, and
	// the advice does not.
	p.note("PodMTU", "node/"+p.self.Name,
		"pods get an MTU of %d bytes, and the narrowest way to other locations carries %d. %s. The best MTU for pods here is %d: %s",
		p.facts.Adapter.PodMTU, narrowest.MTU, what, best, do)
}
