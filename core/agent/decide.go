package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/self"
	"github.com/kilo-overlay/kilo/core/state"
)

// firstPatience is how long the best candidate of a location without a gateway
// leaves the others time to speak before it claims. A first gateway keeps the
// task however good a candidate comes later, and the agents of a new cluster
// start within seconds of each other. Traffic does not wait for it: an
// unclaimed location is served by its best candidate.
const firstPatience = 10 * time.Second

// failedPatience is how long a gateway's Node has to be not ready before the
// next candidate claims. Kubelets report every ten seconds: after the API
// server was away, healthy Nodes may be called not ready for that long.
const failedPatience = 12 * time.Second

// factsPatience is how long after its start an agent waits for the host CNI
// before it says something about its node without it. A node that is restarted
// would otherwise take its pod prefix back for a moment, from everybody.
const factsPatience = 10 * time.Second

// world is everything that one pass looks at.
type world struct {
	now, started time.Time

	snapshot         model.Snapshot
	snapshotWarnings []model.Warning
	synced           bool // the snapshot is the API server's, and whole

	inputs        model.Inputs
	inputWarnings []model.Warning
	inputsKnown   bool

	host    model.Host
	tunnel  string // kind of the WireGuard device; "" while there is none
	adapter adapter.Adapter
	facts   adapter.Facts
	// factsKnown tells that facts are an answer of the host CNI, be it an
	// earlier one.
	factsKnown bool

	heard []PeerStatus
	live  map[place]bool // what probes say; a place is absent while they do not know
	paths map[string]int // node to the largest packet that reaches it, where known
	// observed is what stands in the kernel; read only while it matters.
	observed state.State

	// standing tells that this node could take over now from a gateway that works
	// (it is armed, and agents speak of it); spreading that it has, and that its
	// Node object is not to say so yet.
	standing, spreading bool
	// epoch is the one that the own Node object says.
	epoch uint64
}

// memory is what one pass leaves to the next.
type memory struct {
	mtu       int                     // last good MTU of the tunnel
	live      map[place]bool          // as the last plan took it
	published map[model.Key]published // where peers were published to be
	// paths is node to the largest packet that reaches it, as the last plan took it.
	paths map[string]int
	// due is since when the node would claim to serve, for dueReason; zero: it
	// would not.
	due       time.Time
	dueReason string
	// wireGuard are the addresses that the node last decided to publish. Where it
	// has lost one to another node, that is the one it took instead: a node that
	// went back to what it had would meet the other one there, again and again.
	wireGuard []netip.Addr
}

// decision is what one pass wants done. Nothing is done yet.
type decision struct {
	mtu int
	// published is what the node says about itself, where publish tells that
	// enough is known to say it.
	published model.Published
	publish   bool
	claim     plan.ClaimResult
	// serve is the epoch under which to take over from a gateway that works; 0: not.
	serve uint64

	wanted state.State
	report plan.Report
	// apply tells that wanted may be applied at all; prune that what it lacks
	// may be removed.
	apply, prune bool
	// mute tells that the node's key is another node's: its device must not speak.
	mute bool

	targets  []target
	sizes    []sizeTarget
	warnings []model.Warning
	// again asks for a pass after that time; 0: none.
	again  time.Duration
	memory memory
}

// decide is the agent's thinking, apart from every effect.
func (c *Config) decide(w *world, m memory) decision {
	d := decision{memory: m}
	holder := c.keyHolder(&w.snapshot)
	if holder != nil {
		w.snapshot = c.withoutSelf(w.snapshot)
	}
	me := w.snapshot.Node(c.Node)

	c.describe(w, me, &d)
	c.yieldAddresses(&w.snapshot, &d)
	mesh := plan.NewMesh(w.snapshot)
	d.targets = append(probeTargets(&w.snapshot, mesh.Locations, c.Node), linkTargets(&w.snapshot, mesh, c.Node)...)
	d.memory.live = presume(w, m.live, d.targets)
	d.memory.paths = presumePaths(w, m.paths, c.Interface)

	d.wanted, d.report = mesh.Plan(plan.Facts{
		Self: c.Node, Interface: c.Interface, Port: c.Port, Key: c.Key, TunnelMTU: d.mtu,
		Connected: connected(w.host, c.Interface, w.facts.ExcludeInterfaces),
		LAN:       lan(w.host, me),
		Adapter:   w.facts, AdapterKnown: w.factsKnown,
		Live: d.memory.locations(), Direct: d.memory.nodes(),
		PathMTU: d.memory.paths, TagForwarded: c.AcceptForwarded,
	}, w.adapter)

	d.sizes = sizeTargets(&w.snapshot, d.wanted, w.heard, w.now, c.Node, d.mtu)
	d.memory.paths = pathsTo(d.sizes, d.memory.paths)

	d.memory.published = follow(w, d.wanted.Peers(), d.memory.published)

	c.addresses(w, me, mesh, &d)
	c.claim(w, mesh, me, &d)
	if me != nil {
		d.published.Discovered = learned(&w.snapshot, d.wanted.Peers(), w.heard, me.Discovered, outside(&w.snapshot, w.facts.ClusterPrefixes))
	}

	// A node that is in no snapshot has no place in the mesh that could be
	// planned for; what is there stays.
	d.apply = me != nil && d.mtu > 0
	d.prune = w.synced && w.factsKnown && me != nil && (me.Spoken || holder != nil)
	d.publish = w.synced && w.inputsKnown && me != nil && d.mtu > 0 && w.tunnel != ""
	if wait := factsPatience - w.now.Sub(w.started); d.publish && !w.factsKnown && wait > 0 {
		d.publish = false
		d.again = soonest(d.again, wait)
	}
	if holder != nil {
		c.yieldKey(holder, &d)
	}
	d.warnings = each(w.snapshotWarnings, w.inputWarnings, d.warnings, w.facts.Warnings, d.report.Warnings)
	return d
}

// each puts lists of warnings together, every warning once: what is wrong with
// the own Node is found by its reader and by the snapshot's alike.
func each(lists ...[]model.Warning) []model.Warning {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b model.Warning) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Object, b.Object), strings.Compare(a.Message, b.Message))
	})
	return slices.Compact(all)
}

// describe decides what the node says about itself as far as it depends on
// nobody else, and the MTU of its tunnel.
func (c *Config) describe(w *world, me *model.Node, d *decision) {
	overlay := slices.Concat(w.snapshot.WireGuardSubnets, w.snapshot.ServicePrefixes, w.facts.ClusterPrefixes)
	for i := range w.snapshot.Nodes {
		overlay = append(overlay, w.snapshot.Nodes[i].PodPrefixes...)
	}
	r := self.Decide(self.Input{
		Node: c.Node, Inputs: w.inputs, Settings: c.Settings, Host: w.host, Adapter: w.facts,
		Interface: c.Interface, Overlay: overlay, Key: c.Key, Tunnel: w.tunnel,
	})
	d.published = r.Published
	d.published.FromFlags = fromFlags(&r, &w.inputs)
	if w.inputsKnown {
		d.warnings = append(d.warnings, r.Warnings...)
	}

	endpoint, internal := r.Published.Endpoint.Addr, r.Published.InternalIPs
	if !w.inputsKnown && me != nil {
		// Without the API server, what the node last said stands in.
		endpoint, internal = me.Endpoint.Addr, me.InternalIPs
	}
	d.mtu = c.MTU
	if d.mtu == 0 {
		mtu, err := TunnelMTU(w.host, endpoint, internal)
		if err != nil {
			d.warnings = append(d.warnings, c.warning("TunnelMTU", "%v", err))
			mtu = d.memory.mtu
		}
		d.mtu = mtu
	}
	d.memory.mtu = d.mtu
	d.published.TunnelMTU = d.mtu
	for at, live := range w.live {
		if at.Node != "" && !live {
			d.published.Silent = append(d.published.Silent, at.Node)
		}
	}
	slices.Sort(d.published.Silent)
}

// fromFlags are the settings in r that no annotation says.
func fromFlags(r *self.Result, in *model.Inputs) model.FromFlags {
	f := model.FromFlags{
		Leader:         r.Leader && !in.Leader,
		ForcedEndpoint: r.ForcedEndpoint && in.ForceEndpoint.IsZero(),
	}
	if in.Keepalive == 0 {
		f.Keepalive = r.Keepalive
	}
	if len(in.AllowedLocationIPs) == 0 {
		f.AllowedLocationIPs = r.AllowedLocationIPs
	}
	return f
}

// claim decides whether to serve as the location's gateway.
func (c *Config) claim(w *world, mesh *plan.Mesh, me *model.Node, d *decision) {
	d.claim = mesh.Claim(c.Node)
	if w.inputsKnown && me != nil && me.Spoken && me.Location != d.published.Location {
		// A claim is to the location that the node is about to leave. In the
		// next somebody serves already.
		d.claim = plan.ClaimResult{Asked: me.Asked}
	}
	patience := time.Duration(0)
	switch {
	case !d.claim.Claims:
	case d.claim.First && !allSpoke(d.report.Location):
		patience = firstPatience
	case d.claim.Failed:
		patience = failedPatience
	}
	if patience == 0 {
		d.memory.due, d.memory.dueReason = time.Time{}, ""
	} else {
		if d.memory.due.IsZero() || d.memory.dueReason != d.claim.Reason {
			d.memory.due, d.memory.dueReason = w.now, d.claim.Reason
		}
		if wait := patience - w.now.Sub(d.memory.due); wait > 0 {
			d.claim = plan.ClaimResult{Epoch: me.Epoch, Asked: me.Asked}
			d.again = soonest(d.again, wait)
		}
	}
	d.published.Epoch, d.published.Asked = d.claim.Epoch, d.claim.Asked
	switch {
	case d.claim.Claims && !d.claim.First && !d.claim.Failed && c.FailoverPort > 0 && d.published.Slot > 0:
		// Nothing has failed: those who are concerned change over one after the
		// other, and the Node object says it when they have. Who is armed only
		// now waits until the others have it as a peer.
		if w.standing {
			d.serve = d.claim.Epoch
		} else {
			d.claim = plan.ClaimResult{}
			d.again = soonest(d.again, time.Second)
		}
		d.published.Epoch, d.published.Asked = w.epoch, me.Asked
	case w.spreading && me != nil:
		d.published.Epoch, d.published.Asked = w.epoch, me.Asked
	}
}

// allSpoke tells whether every node of the location that is up has an agent.
func allSpoke(l *plan.Location) bool {
	return l == nil || !slices.ContainsFunc(l.Nodes, func(n *model.Node) bool { return n.Ready && !n.Spoken })
}

// addresses decides which WireGuard addresses the node claims or keeps, and its
// place among those that can serve.
func (c *Config) addresses(w *world, me *model.Node, mesh *plan.Mesh, d *decision) {
	from := mesh
	if had := d.memory.wireGuard; me != nil && len(had) > 0 && !slices.Equal(had, me.WireGuardIPs) {
		from = plan.NewMesh(c.withAddresses(w.snapshot, had))
	}
	found, err := from.Addresses(c.Node, c.Gateways)
	if err != nil {
		d.warnings = append(d.warnings, c.warning("NoWireGuardAddress", "%v", err))
	}
	if len(found) > 0 && w.synced && me != nil { // what is only half known decides nothing
		d.memory.wireGuard = found
	}
	d.published.WireGuardIPs = found
	if c.FailoverPort > 0 {
		d.published.Slot = mesh.Slot(c.Node, c.Gateways)
	}
}

// withAddresses is a Snapshot in which the own node has the WireGuard addresses that
// it had, as far as they are nobody else's now: whatever somebody wrote on its Node, or
// took from it, moves no address.
func (c *Config) withAddresses(s model.Snapshot, had []netip.Addr) model.Snapshot {
	free := slices.DeleteFunc(slices.Clone(had), func(a netip.Addr) bool {
		return slices.ContainsFunc(s.Nodes, func(n model.Node) bool { return n.Name != c.Node && slices.Contains(n.WireGuardIPs, a) })
	})
	if len(free) == 0 {
		return s
	}
	s.Nodes = slices.Clone(s.Nodes)
	if me := s.Node(c.Node); me != nil {
		me.WireGuardIPs = free
	}
	return s
}

func (c *Config) warning(kind, format string, args ...any) model.Warning {
	return model.Warning{Kind: kind, Object: "node/" + c.Node, Message: fmt.Sprintf(format, args...)}
}

// locations and nodes are the parts of live.
func (m *memory) locations() map[string]bool {
	return m.part(func(p place) (string, bool) { return p.Location, p.Node == "" })
}
func (m *memory) nodes() map[string]bool {
	return m.part(func(p place) (string, bool) { return p.Node, p.Node != "" })
}

func (m *memory) part(name func(place) (string, bool)) map[string]bool {
	out := make(map[string]bool, len(m.live))
	for at, live := range m.live {
		if n, ok := name(at); ok {
			out[n] = live
		}
	}
	return out
}

// presume completes what probes know. A place that they cannot tell about yet
// is what it was in the last plan, or, right after a start, what the kernel
// shows: an agent that is restarted must not take a working way away.
func presume(w *world, before map[place]bool, targets []target) map[place]bool {
	out := make(map[place]bool, len(targets))
	for _, t := range targets {
		live, known := w.live[t.Place]
		if !known {
			live, known = before[t.Place]
		}
		switch {
		case known:
		case t.Place.Node != "":
			live = linked(w, t.Place.Node)
		default:
			live = carried(w, t.Place.Location)
		}
		out[t.Place] = live
	}
	return out
}

// presumePaths completes what was measured. What is not known yet is what it was
// in the last plan, or, right after a start, what the kernel's routes say: on a
// path that drops what is too large, an agent that is restarted must not send it.
func presumePaths(w *world, before map[string]int, iface string) map[string]int {
	out := make(map[string]int, len(w.paths))
	if len(w.observed.Routes) > 0 {
		carried := map[netip.Prefix]int{}
		for _, r := range w.observed.Routes {
			if r.Table == state.TableOverlay && r.Type == state.Unicast && r.Device == iface && r.MTU > 0 {
				carried[r.Dst] = r.MTU
			}
		}
		for i := range w.snapshot.Nodes {
			n := &w.snapshot.Nodes[i]
			for _, a := range n.WireGuardIPs {
				if mtu := carried[netip.PrefixFrom(a, a.BitLen())]; mtu > 0 && mtu < n.TunnelMTU {
					out[n.Name] = mtu
				}
			}
		}
	}
	maps.Copy(out, before)
	maps.Copy(out, w.paths)
	return out
}

// pathsTo keeps what is known of paths to these.
func pathsTo(targets []sizeTarget, known map[string]int) map[string]int {
	out := make(map[string]int, len(targets))
	for _, t := range targets {
		if mtu := known[t.Node]; mtu > 0 {
			out[t.Node] = mtu
		}
	}
	return out
}

// linked tells whether the kernel already reaches a node's pods over the link
// with it.
func linked(w *world, node string) bool {
	n := w.snapshot.Node(node)
	if n == nil {
		return false
	}
	for _, l := range w.observed.Links {
		if l.Tunnel == nil {
			continue
		}
		i := slices.IndexFunc(l.Tunnel.Peers, func(p state.Peer) bool { return p.Key == n.Key })
		if i < 0 {
			continue
		}
		for _, r := range w.observed.Routes {
			if r.Table == state.TableOverlay && r.Type == state.Unicast && slices.Contains(n.PodPrefixes, r.Dst) {
				// By way of another device it goes to the gateway.
				return r.Device == l.Name && slices.Contains(l.Tunnel.Peers[i].AllowedIPs, r.Dst)
			}
		}
	}
	return false
}

// carried tells whether the kernel leads one of the addresses that are kept out
// of the tunnel to a location without life into the tunnel all the same: then an
// earlier agent had found it alive.
func carried(w *world, location string) bool {
	at := map[netip.Addr]bool{}
	for i := range w.snapshot.Nodes {
		n := &w.snapshot.Nodes[i]
		if n.Location != location {
			continue
		}
		for _, p := range n.InternalIPs {
			at[p.Addr()] = true
		}
		for _, server := range w.snapshot.APIServers {
			if belongs(n, server.Addr()) {
				at[server.Addr()] = true
			}
		}
	}
	found := false
	for _, r := range w.observed.Routes {
		if r.Table != state.TableOverlay || !r.Dst.IsSingleIP() || !at[r.Dst.Addr()] {
			continue
		}
		switch {
		case r.Type == state.Unicast:
			found = true
		case r.Type == state.Throw && r.Metric == state.MetricLast:
			// It stood under a route that went with its link.
			found = true
		case r.Type == state.Throw:
			return false
		}
	}
	return found
}

// connected lists the networks of the node's own interfaces, those of the mesh
// and of the host CNI left out.
func connected(h model.Host, iface string, cni []string) []netip.Prefix {
	var out []netip.Prefix
	for _, l := range h.Interfaces {
		if !l.Up || l.Name == iface || l.Name == state.VXLANLink || self.MatchName(cni, l.Name) {
			continue
		}
		for _, p := range l.Addresses {
			a := p.Addr()
			if a.IsLoopback() || a.IsLinkLocalUnicast() || p.IsSingleIP() {
				continue
			}
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// lan is the interface that has the node's internal address, IPv4 before IPv6;
// zero where none has it.
func lan(h model.Host, me *model.Node) adapter.LAN {
	if me == nil {
		return adapter.LAN{}
	}
	for _, internal := range me.InternalIPs {
		for i := range h.Interfaces {
			if l := &h.Interfaces[i]; l.Up && holds(l, internal.Addr()) {
				return adapter.LAN{Device: l.Name, MTU: l.MTU}
			}
		}
	}
	return adapter.LAN{}
}

// soonest returns the shorter of two waits, where 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
