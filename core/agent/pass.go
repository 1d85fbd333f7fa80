package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// pass is one full recomputation: gather, decide, act, tell. It returns an
// error only when the agent cannot go on at all; everything else is collected,
// reported and tried again soon.
func (a *Agent) pass(life context.Context, why reason) error {
	began := time.Now()
	a.mu.Lock()
	a.busy = began
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.busy = time.Time{}
		a.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(life, passTimeout)
	defer cancel()
	a.metrics.reconciles.Inc()
	errs := new(multierror.Error)
	note := func(event string, err error) {
		if err != nil {
			a.failed(event)(err)
			errs = multierror.Append(errs, fmt.Errorf("%s: %w", event, err))
		}
	}

	w := a.gather(ctx, note)
	d := a.decide(w, a.memory)
	if err := a.ensureDevice(ctx, d.mtu, note); err != nil {
		return err
	}
	if a.device != nil && w.tunnel != a.device.Kind() {
		// The device was made just now: its kind belongs to what is published.
		w.tunnel = a.device.Kind()
		d = a.decide(w, a.memory)
	}
	a.memory = d.memory

	var report apply.Report
	if d.apply && a.device != nil {
		var err error
		report, err = a.act(ctx, w, &d)
		note("apply", err)
		now := time.Now()
		a.greeter.Made(report.Done, now)
		a.moved(w, now)
		d.again = soonest(d.again, a.greeter.Greet(ctx, now))
	}
	if d.apply && d.prune {
		note("cut", a.cut(ctx, w))
		a.forwarder.Set(d.report.RemoteIPv4, d.report.RemoteIPv6)
	}
	d.warnings = append(d.warnings, a.forwarder.Warnings()...)
	a.prober.Set(questions{d.targets, lastHandshakes(w.heard)}) // not before the address is there that they are asked from
	a.sizer.Set(d.sizes)
	if a.guardian != nil {
		a.guardian.Set(dutyOf(w.snapshot, d.report.Locations, a.Node))
		if d.serve > 0 {
			a.guardian.Serve(d.serve)
		}
	}
	a.server.Listen(a.addresses(d.published.InternalIPs, w.inputs.NodeInternalIPs))

	switch {
	case life.Err() != nil:
		return life.Err()
	case errs.Len() > 0:
		a.again(a.retry.Next())
	default:
		a.retry.Reset()
		a.again(d.again)
	}
	a.tell(ctx, w, &d, report, errs, Pass{At: began, Why: why.String(), Took: time.Since(began).Seconds()})
	return nil
}

// gather looks at the world. What cannot be read is noted, and what was known
// of it before is used.
func (a *Agent) gather(ctx context.Context, note func(string, error)) *world {
	w := &world{now: time.Now(), started: a.started, live: a.prober.Live(), paths: a.sizer.MTU()}
	w.snapshot, w.snapshotWarnings, w.synced = a.Cluster.Snapshot()
	if a.guardian != nil {
		if me := w.snapshot.Node(a.Node); me != nil {
			w.epoch = me.Epoch
			if me.Slot == 0 {
				a.armed = time.Time{}
			} else if a.armed.IsZero() {
				a.armed = w.now
			}
			w.standing = me.Slot > 0 && w.now.Sub(a.armed) >= armedFor
		}
		w.spreading = a.guardian.Spreading()
		w.snapshot = a.guardian.Apply(w.snapshot)
	}
	w.inputs, w.inputWarnings, w.inputsKnown = a.Cluster.Inputs()

	host, err := a.Kernel.Host(ctx)
	if err == nil {
		a.host = host
	}
	note("host", err)
	w.host = a.host

	cni := a.cni.Know()
	w.adapter, w.facts, w.factsKnown = cni.adapter, cni.facts, cni.known

	if a.device != nil {
		w.tunnel = a.device.Kind()
		w.heard, err = a.Kernel.Peers(ctx)
		note("peers", err)
	}
	if a.applied == nil {
		// Nothing was applied yet: what an earlier agent left matters.
		w.observed, err = a.Kernel.Observe(ctx)
		note("observe", err)
	}
	return w
}

// ensureDevice sees to it that the WireGuard link is there. Its error ends the
// agent.
func (a *Agent) ensureDevice(ctx context.Context, mtu int, note func(string, error)) error {
	if mtu == 0 {
		return nil
	}
	device, err := a.Device(ctx, mtu)
	a.missing = err
	if err != nil {
		if a.device == nil && ctx.Err() == nil && !errors.Is(err, ErrNotYet) {
			return err
		}
		note("device", err)
		return nil
	}
	if device == a.device {
		return nil
	}
	a.device = device
	a.Log.Info("WireGuard device", "interface", a.Interface, "kind", device.Kind(), "mtu", mtu)
	done := device.Done()
	a.ending.Store(done != nil)
	if done != nil {
		go func() {
			<-done // at the latest when the agent ends
			a.wake.Wake(becauseKernel)
		}()
	}
	return nil
}

// act applies what was decided.
func (a *Agent) act(ctx context.Context, w *world, d *decision) (apply.Report, error) {
	wanted := d.wanted
	if !d.prune {
		observed, err := a.Kernel.Observe(ctx)
		if err != nil {
			return apply.Report{}, err
		}
		wanted = keep(observed, wanted)
	}
	if d.mute {
		wanted = mute(wanted)
	}
	report, err := apply.Run(ctx, a.Kernel, wanted)
	for _, c := range report.Done {
		a.metrics.changes.WithLabelValues(kind(c)).Inc()
	}
	if a.applied != nil && len(state.Diff(*a.applied, wanted)) == 0 {
		a.repaired(report.Done)
	}
	a.applied = nil
	if err == nil {
		a.applied = &wanted
	}
	return report, err
}

// repaired counts changes that were needed although nothing else was wanted
// than before: somebody had changed what is ours.
func (a *Agent) repaired(done []state.Change) {
	kinds := map[string]int{}
	for _, c := range done {
		if k := kind(c); k != "endpoint" {
			kinds[k]++
		}
	}
	if len(kinds) == 0 {
		return
	}
	for k, n := range kinds {
		a.metrics.drift.WithLabelValues(k).Add(float64(n))
	}
	a.pace.Allow()
	var words []string
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		words = append(words, fmt.Sprintf("%d %s", kinds[k], k))
	}
	a.Log.Warn("something else changed what is ours; repaired", "changes", strings.Join(words, ", "), "first", done[0].String())
}

// kind names the thing that a change is about, for metrics.
func kind(c state.Change) string {
	switch c := c.(type) {
	case state.SetLink, state.DeleteLink:
		return "link"
	case state.SetPeer:
		if c.SetEndpoint && !c.Create && !c.ReplaceAllowedIPs && len(c.AddAllowedIPs) == 0 {
			return "endpoint" // knocking where nobody answers
		}
		return "peer"
	case state.DeletePeer:
		return "peer"
	case state.SetRoute, state.DeleteRoute:
		return "route"
	case state.AddRule, state.DeleteRule:
		return "rule"
	case state.SetFilter:
		return "filter"
	}
	return "other"
}

// addresses are where to serve metrics and health. Without --listen that is
// the node's own address: what is told there is the cluster's business.
func (a *Agent) addresses(internal []netip.Prefix, node []netip.Addr) []netip.AddrPort {
	loopback := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	if a.Config.Listen.IsValid() {
		out := []netip.AddrPort{a.Config.Listen}
		if at := a.Config.Listen.Addr(); !at.IsUnspecified() && !at.IsLoopback() {
			out = append(out, loopback(a.Config.Listen.Port()))
		}
		return out
	}
	out := []netip.AddrPort{loopback(DefaultPort)}
	add := func(at netip.Addr) {
		if p := netip.AddrPortFrom(at, DefaultPort); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, p := range internal {
		add(p.Addr())
	}
	// Where the kubelet probes, whatever the node says of itself.
	for _, at := range node {
		add(at.Unmap())
	}
	return out
}

// tell makes what happened visible: metrics, status, Events, and a log line
// for what changed.
func (a *Agent) tell(ctx context.Context, w *world, d *decision, report apply.Report, errs *multierror.Error, p Pass) {
	p.Changes = len(report.Done)
	for _, err := range errs.WrappedErrors() {
		p.Errors = append(p.Errors, err.Error())
	}
	switch {
	case w.synced:
		p.Snapshot = "api"
	case len(w.snapshot.Nodes) > 0:
		p.Snapshot = "disk"
	default:
		p.Snapshot = "none"
	}
	waiting := a.waiting(w, d)
	switch {
	case len(p.Errors) == 0:
		a.failing = time.Time{}
	case a.failing.IsZero():
		a.failing = p.At
	}
	a.mu.Lock()
	permitted := len(a.forbids) == 0
	a.mu.Unlock()
	ready := d.apply && w.factsKnown && permitted && a.missing == nil && d.report.Role != plan.Waiting && (a.everServed || a.applied != nil)
	a.everServed = a.everServed || ready

	s := Status{
		Version: a.Version, Started: a.started, Node: a.Node, Ready: ready,
		Role: string(d.report.Role), Waiting: waiting, Absent: absent(&w.snapshot, a.Node), Key: a.Key,
		Tunnel:   TunnelStatus{Interface: a.Interface, Port: a.Port, MTU: d.mtu, Kind: w.tunnel},
		Adapter:  a.adapterStatus(d.report.PodMTU),
		Warnings: d.warnings, Last: p,
	}
	if me := w.snapshot.Node(a.Node); me != nil {
		s.Location, s.Endpoint, s.InternalIPs, s.WireGuardIPs = me.Location, me.Endpoint.String(), me.InternalIPs, me.WireGuardIPs
	}
	live := d.memory.locations()
	for i := range d.report.Locations {
		s.Locations = append(s.Locations, locationStatus(&d.report.Locations[i], live))
	}

	names, watching := map[model.Key]string{}, map[model.Key]sighting{}
	if peers := d.wanted.Peers(); len(peers) > 0 {
		heard := map[model.Key]*PeerStatus{}
		for i := range w.heard {
			heard[w.heard[i].Key] = &w.heard[i]
		}
		for _, peer := range peers {
			names[peer.Key] = peer.Name
			seen := see(heard[peer.Key], w.now)
			if roams := !peer.Endpoint.IsValid() || publishesNone(&w.snapshot, peer.Key); roams || !seen.session {
				seen.roams = roams
				watching[peer.Key] = seen
			}
		}
	}
	a.mu.Lock()
	a.status, a.wanted, a.names, a.watching = s, d.wanted, names, watching
	a.mu.Unlock()

	a.measure(w, d, &s)
	a.log(ctx, d, &s)

	say := statement{condition: a.condition(d, &s)}
	if d.publish {
		say.facts = &d.published
	}
	if s.Ready && d.prune && speaksForPeers(d.report.Locations, a.Node) {
		say.heard = &model.Heard{Gateway: a.Node, Last: lastHandshakes(w.heard)}
	}
	if w.synced && w.inputsKnown {
		a.publisher.Offer(say)
	}
}

// speaksForPeers tells whether a node is the one gateway that writes the status of
// Peers: the first that is up and can be reached, else the first that is up.
func speaksForPeers(locations []plan.Location, node string) bool {
	var speaker *model.Node
	for i := range locations {
		g := locations[i].Gateway
		if g == nil || !g.Ready || !g.Spoken {
			continue
		}
		if speaker == nil || speaker.Endpoint.IsZero() && !g.Endpoint.IsZero() {
			speaker = g
		}
	}
	return speaker != nil && speaker.Name == node
}

func lastHandshakes(heard []PeerStatus) map[model.Key]time.Time {
	out := make(map[model.Key]time.Time, len(heard))
	for i := range heard {
		if !heard[i].LastHandshake.IsZero() {
			out[heard[i].Key] = heard[i].LastHandshake
		}
	}
	return out
}

func publishesNone(s *model.Snapshot, k model.Key) bool {
	for i := range s.Nodes {
		if s.Nodes[i].Key == k {
			return s.Nodes[i].Endpoint.IsZero()
		}
	}
	return false
}

// waiting lists in sentences what is not known yet.
func (a *Agent) waiting(w *world, d *decision) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case !w.synced && len(w.snapshot.Nodes) == 0:
		say("the cluster is not known: the API server has not answered every question yet, and there is no snapshot of an earlier run")
	case !w.synced:
		say("the API server has not answered every question yet; the last good snapshot serves meanwhile")
	}
	a.mu.Lock()
	for _, verb := range a.forbids {
		say("the API server forbids this agent to %s: apply manifests/rbac.yaml", verb)
	}
	a.mu.Unlock()
	if a.missing != nil {
		say("nothing can be carried to other locations: %v", a.missing)
	}
	if d.mtu == 0 {
		say("the tunnel's MTU is not known; see the warning TunnelMTU")
	}
	if cni := a.cni.Know(); !cni.known && cni.err != nil {
		say("the host CNI is not known: %v", cni.err)
	}
	out = append(out, d.report.Waiting...)
	if me := w.snapshot.Node(a.Node); me != nil && w.synced && len(d.published.WireGuardIPs) > 0 && !slices.Equal(me.WireGuardIPs, d.published.WireGuardIPs) {
		say("WireGuard address %v is claimed and was not read back yet", d.published.WireGuardIPs)
	}
	return out
}

// absent names the nodes that are not in the mesh: whoever looks at one node
// should see why another one is missing.
func absent(s *model.Snapshot, self string) []string {
	var out []string
	for i := range s.Nodes {
		if n := &s.Nodes[i]; !n.Spoken && n.Name != self {
			out = append(out, fmt.Sprintf("node %s: no agent has published its key and location; does kg run there, and may it patch its Node?", n.Name))
		}
	}
	return out
}

func (a *Agent) adapterStatus(bestPodMTU int) AdapterStatus {
	cni := a.cni.Know()
	s := AdapterStatus{
		CNI: cni.facts.CNI, Mode: cni.facts.Mode, PodPrefixes: cni.facts.PodPrefixes, ClusterPrefixes: cni.facts.ClusterPrefixes,
		NodesOnly: cni.facts.NodesOnly, Device: cni.facts.Device, DeviceMTU: cni.facts.DeviceMTU, PodMTU: cni.facts.PodMTU,
		BestPodMTU: bestPodMTU,
	}
	if cni.adapter != nil {
		s.Name = cni.adapter.Name()
	}
	if cni.err != nil {
		s.Error = cni.err.Error()
	}
	return s
}

func locationStatus(l *plan.Location, live map[string]bool) LocationStatus {
	s := LocationStatus{Name: l.Name}
	for _, n := range l.Nodes {
		s.Nodes = append(s.Nodes, n.Name)
	}
	for _, n := range l.Candidates {
		s.Candidates = append(s.Candidates, n.Name)
	}
	switch {
	case l.Gateway == nil:
		s.Why = "no node of the location has an agent that has spoken"
	case l.Claimed:
		s.Gateway, s.Epoch = l.Gateway.Name, l.Gateway.Epoch
		s.Why = fmt.Sprintf("its claim, epoch %d, is the location's highest; it serves until it fails or another one is asked for", l.Gateway.Epoch)
	default:
		s.Gateway = l.Gateway.Name
		s.Why = "best candidate; nobody has claimed to serve yet"
	}
	if ok, asked := live[l.Name]; asked {
		s.Live = &ok
	}
	return s
}

func (a *Agent) measure(w *world, d *decision, s *Status) {
	m := a.metrics
	m.duration.Observe(s.Last.Took)
	m.leader.Set(oneIf(d.report.Role == plan.Gateway))
	m.ready.Set(oneIf(s.Ready))
	m.waiting.Set(float64(len(s.Waiting)))
	m.absent.Set(float64(len(s.Absent)))
	spoken := 0
	for i := range w.snapshot.Nodes {
		if w.snapshot.Nodes[i].Spoken {
			spoken++
		}
	}
	m.nodes.Set(float64(spoken))
	m.peers.Set(float64(len(w.snapshot.Peers)))
	m.setWarnings(d.warnings)
	m.setPodMTU(w.facts.PodMTU, d.report.PodMTU)
	m.setPaths(d.memory.paths)
	m.setLive(d.memory.locations(), d.memory.nodes())
	if w.tunnel != "" {
		m.tunnel.Reset()
		m.tunnel.WithLabelValues(w.tunnel).Set(1)
	}
}

// log says what has changed since the last pass, and hands Events on.
func (a *Agent) log(ctx context.Context, d *decision, s *Status) {
	a.said.Warnings(d.warnings, a.Log)
	for _, warning := range d.warnings {
		a.Cluster.Event(ctx, warning)
	}
	if a.said.Says("role", s.Role+"/"+s.Location) {
		a.Log.Info("role", "role", s.Role, "location", s.Location)
	}
	for i := range s.Locations {
		l := &s.Locations[i]
		if a.said.Says("gateway of "+l.Name, l.Gateway) {
			a.Log.Info("gateway", "location", l.Name, "node", l.Gateway, "epoch", l.Epoch)
		}
	}
	if a.said.Says("waiting", strings.Join(s.Waiting, "; ")) && len(s.Waiting) > 0 {
		a.Log.Info("waiting", "for", strings.Join(s.Waiting, "; "))
	}
	if a.said.Says("absent", strings.Join(s.Absent, "; ")) {
		a.Log.Info("nodes that are not in the mesh", "count", len(s.Absent), "first", strings.Join(s.Absent[:min(len(s.Absent), 2)], "; "))
	}
	if a.said.Says("ready", fmt.Sprint(s.Ready)) && s.Ready {
		a.Log.Info("ready: the kernel holds what the mesh wants of this node")
	}
	if a.said.Says("errors", strings.Join(s.Last.Errors, "; ")) {
		if len(s.Last.Errors) > 0 {
			a.Log.Error("reconciling failed, trying again", "errors", s.Last.Errors)
		} else {
			a.Log.Info("reconciling works again")
		}
	}
	if d.claim.Claims && d.publish && a.said.Says("claim", fmt.Sprint(d.claim.Epoch)) {
		a.Log.Info("claiming to serve as gateway", "epoch", d.claim.Epoch, "reason", d.claim.Reason)
		claim := a.warning("GatewayClaim", "%s", d.claim.Reason)
		claim.Note = !d.claim.Failed
		a.Cluster.Event(ctx, claim)
	}
	a.Log.Debug("pass", "why", s.Last.Why, "seconds", s.Last.Took, "changes", s.Last.Changes)
}

// condition is how the agent fares; nil while that is no news.
func (a *Agent) condition(d *decision, s *Status) *condition {
	switch {
	case s.Ready && !a.failing.IsZero() && time.Since(a.failing) > failingPatience:
		return &condition{false, "ReconcileFails", strings.Join(s.Last.Errors, "; ")}
	case s.Ready && d.report.Role == plan.Gateway:
		return &condition{true, "Gateway", fmt.Sprintf("carries the traffic of location %q to other locations", s.Location)}
	case s.Ready:
		return &condition{true, "Member", fmt.Sprintf("reaches other locations through the gateway of location %q", s.Location)}
	case a.missing != nil && a.everServed && time.Since(a.failing) < failingPatience:
		return nil // who makes the device may just be restarted
	case time.Since(a.started) > conditionPatience:
		return &condition{false, "Waiting", strings.Join(slices.Concat(s.Waiting, s.Last.Errors), "; ")}
	}
	return nil
}

// Status returns what the agent tells at /status.
func (a *Agent) Status(ctx context.Context) Status {
	a.mu.Lock()
	s := a.status
	a.mu.Unlock()
	s.Peers = a.peers(ctx)
	return s
}

// peers reads the device, named as the last plan names its peers.
func (a *Agent) peers(ctx context.Context) []PeerReport {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a.mu.Lock()
	names, kind := a.names, a.status.Tunnel.Kind
	a.mu.Unlock()
	if kind == "" {
		return nil
	}
	heard, err := a.Kernel.Peers(ctx)
	if err != nil {
		return nil
	}
	out := make([]PeerReport, len(heard))
	for i, h := range heard {
		out[i] = PeerReport{Name: names[h.Key], Key: h.Key, ReceivedBytes: h.ReceivedBytes, SentBytes: h.SentBytes}
		if h.Endpoint.IsValid() {
			out[i].Endpoint = h.Endpoint.String()
		}
		if !h.LastHandshake.IsZero() {
			out[i].LastHandshake = &h.LastHandshake
		}
	}
	slices.SortFunc(out, func(p, q PeerReport) int {
		return cmp.Or(strings.Compare(p.Name, q.Name), slices.Compare(p.Key[:], q.Key[:]))
	})
	return out
}

// planText is /debug/plan.
func (a *Agent) planText(ctx context.Context) string {
	a.mu.Lock()
	wanted := a.wanted
	a.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "# wanted by the last plan\n%s", wanted)
	observed, err := a.Kernel.Observe(ctx)
	if err != nil {
		fmt.Fprintf(&b, "\n# not all could be read: %v", err)
	}
	fmt.Fprintf(&b, "\n# observed in the kernel\n%s\n# changes that are due\n", observed)
	for _, c := range state.Diff(observed, wanted) {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// healthy tells whether the loop is alive.
func (a *Agent) healthy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if stuck := time.Since(a.busy); !a.busy.IsZero() && stuck > 4*passTimeout {
		return fmt.Errorf("a pass has been running for %s", stuck.Round(time.Second))
	}
	return nil
}
