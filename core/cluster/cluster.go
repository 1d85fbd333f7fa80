package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

// The kinds of warnings about the sources themselves.
const (
	CannotWatch        = "CannotWatch"
	NoSuchNode         = "NoSuchNode"
	EndpointUnresolved = "EndpointUnresolved"
)

// Config says which cluster this is and who asks.
type Config struct {
	// REST is the way to the API server. It is not changed.
	REST *rest.Config
	// Node is the name of the local Node; "" for a tool that runs on none.
	Node string
	// TopologyLabel names a Node's region where nobody says its location.
	TopologyLabel string
	// WireGuardSubnets, ServicePrefixes and APIServers go into snapshots. What
	// the API server tells of its own addresses is added to the last, what it
	// tells of Services counts where ServicePrefixes is empty.
	WireGuardSubnets []netip.Prefix
	ServicePrefixes  []netip.Prefix
	APIServers       []netip.AddrPort
	// Namespace is where the agents run, and the Secrets with Peers' preshared
	// keys are; "": DefaultNamespace.
	Namespace string
	// Dir is where the last good state is kept for starts without an API
	// server, "/var/lib/kilo"; "" keeps none.
	Dir string
	// Version is told to the API server: "kg/VERSION".
	Version string
	// Log gets transitions; nil: slog.Default().
	Log *slog.Logger
	// Lookup resolves DNS names of endpoints; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Cluster is one process's view of a Kubernetes cluster. Its methods may be
// called at any time from any goroutine; those that only read never wait for
// the network.
type Cluster struct {
	config  Config
	log     *slog.Logger
	dialer  *dialer
	connect func() (*clients, error)
	server  model.Endpoint // the API server as configured
	changed chan struct{}
	names   *names
	disk    *disk
	events  *events
	secrets *secretStore
	targets *destinationStore

	writing sync.Mutex // one write to the own Node at a time

	mu      sync.Mutex
	watched []*source // nodes, peers, slices, services; nil before Run
	nodes   map[string]nodeEntry
	peers   map[string]peerEntry
	slices  map[string][]netip.AddrPort
	// services are the ranges of Services by name of ServiceCIDR.
	services map[string][]netip.Prefix
	claims   Claims
	moment   Moment
	own      *corev1.Node // as last watched
	written  *corev1.Node // as the API server answered our last write
	inputs   model.Inputs // of own, with what is wrong with them
	wrong    []model.Warning
	kept     kept  // what an earlier process left
	view     *view // nil after a change
	// expiry looks again when the next Peer's access ends; nil: none's does.
	expiry *time.Timer
}

type nodeEntry struct {
	node     model.Node
	warnings []model.Warning
}

type peerEntry struct {
	peer     model.Peer // zero when the object is bad
	uid      string
	warnings []model.Warning

	generation int64
	status     *api.PeerStatus // nil: none yet
}

// view is what Snapshot returns.
type view struct {
	snapshot model.Snapshot
	warnings []model.Warning
	complete bool
}

// New returns a Cluster that knows what an earlier process left in c.Dir. It
// asks nobody before Run.
func New(c Config) *Cluster {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	var dial func(context.Context, string, string) (net.Conn, error)
	if c.REST != nil {
		dial = c.REST.Dial
	}
	d := newDialer(dial)
	out := &Cluster{
		config:   c,
		log:      c.Log,
		dialer:   d,
		connect:  sync.OnceValues(func() (*clients, error) { return newClients(c.REST, d, "kg/"+cmp.Or(c.Version, "unknown")) }),
		server:   serverOf(c.REST),
		changed:  make(chan struct{}, 1),
		nodes:    make(map[string]nodeEntry),
		peers:    make(map[string]peerEntry),
		slices:   make(map[string][]netip.AddrPort),
		services: make(map[string][]netip.Prefix),
		moment:   Listed,
		events:   newEvents(),
	}
	out.names = newNames(c.Lookup, out.touch)
	out.secrets = newSecretStore(out.touch)
	out.targets = newDestinationStore(out.touch)
	if c.Dir != "" {
		out.disk = newDisk(c.Dir, c.Log)
		out.kept = out.disk.load(c.Node)
	}
	for _, n := range out.kept.Snapshot.Nodes {
		out.claims.Observe(n, OnDisk)
		out.names.seed(n.Endpoint.Host, n.Endpoint.Addr)
	}
	for _, p := range out.kept.Snapshot.Peers {
		out.names.seed(p.Endpoint.Host, p.Endpoint.Addr)
	}
	return out
}

// Run watches the cluster until ctx ends, and then returns nil. An API server
// that does not answer is no error: Run keeps asking. The error is about a
// configuration with which nothing can be asked.
func (c *Cluster) Run(ctx context.Context) error {
	clients, err := c.connect()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range c.open(clients) {
		group.Go(func() error { return s.run(ctx) })
	}
	group.Go(func() error { c.names.run(ctx); return nil })
	group.Go(func() error { c.events.run(ctx, clients, c.log); return nil })
	group.Go(func() error {
		c.secrets.run(ctx, func(name string) *source {
			s := secretSource(clients, c.config.Namespace, name)
			s.log = c.log
			return s
		}, readSecret)
		return nil
	})
	group.Go(func() error {
		c.targets.run(ctx, func(k destinationKey) *source {
			s := destinationSource(clients, k)
			s.log = c.log
			return s
		}, readTarget)
		return nil
	})
	if c.disk != nil {
		group.Go(func() error { c.disk.run(ctx); return nil })
	}
	return group.Wait()
}

// open makes the sources and tells them whom to call.
func (c *Cluster) open(clients *clients) []*source {
	nodes, peers, slices := nodeSource(clients, c.config.TopologyLabel, c.config.Node), peerSource(clients), sliceSource(clients)
	nodes.changed, nodes.deleted = c.nodeChanged, c.nodeDeleted
	peers.changed, peers.deleted = c.peerChanged, c.peerDeleted
	slices.changed, slices.deleted = c.sliceChanged, c.sliceDeleted
	all := []*source{nodes, peers, slices}
	if len(c.config.ServicePrefixes) == 0 {
		services := serviceSource(clients)
		services.changed, services.deleted = c.serviceChanged, c.serviceDeleted
		all = append(all, services)
	}
	for _, s := range all {
		s.report, s.log = c.touch, c.log
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = all
	return all
}

// Changed gets a value after Snapshot or Inputs may have something new. Values
// are coalesced: one may stand for many changes.
func (c *Cluster) Changed() <-chan struct{} { return c.changed }

// touch makes the next Snapshot look again.
func (c *Cluster) touch() {
	c.mu.Lock()
	c.view = nil
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Snapshot returns what is known of the cluster, and what is wrong with what
// was read. Nobody may change the values.
//
// complete tells that every source has answered since this process started
// and knows the local Node. While it is false, the snapshot holds what an
// earlier process left wherever a source has not answered: what is in it is to
// be served, what is not in it must not be taken for gone. Once complete, a
// snapshot stays so when the API server goes away; it is then the last known.
func (c *Cluster) Snapshot() (s model.Snapshot, w []model.Warning, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.look()
	return v.snapshot, v.warnings, v.complete
}

// Inputs returns what people and the cluster say about the local node. known
// is false until the API server has shown the Node; until then the inputs are
// those of an earlier process, or none.
func (c *Cluster) Inputs() (in model.Inputs, w []model.Warning, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		return c.kept.Inputs, nil, false
	}
	in = c.inputs
	in.ForceEndpoint.Addr, w = c.resolve("node/"+c.own.Name, in.ForceEndpoint, slices.Clip(c.wrong))
	return in, w, true
}

// Annotations returns all annotations of the local Node, for adapters whose CNI
// keeps its record there; nil until the API server has shown the Node. Nobody
// may change the map.
func (c *Cluster) Annotations() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		return nil
	}
	if c.own.Annotations == nil {
		return map[string]string{}
	}
	return c.own.Annotations
}

// look returns the current view, making it where it is not there.
func (c *Cluster) look() *view {
	if c.view != nil {
		return c.view
	}
	v := &view{complete: len(c.watched) > 0}
	s := model.Snapshot{
		WireGuardSubnets: c.config.WireGuardSubnets,
		ServicePrefixes:  c.servicesKnown(),
	}
	self := "node/" + c.config.Node
	answered := make([]bool, 4)
	for i, source := range c.watched {
		var trouble string
		if answered[i], trouble = source.state(); trouble != "" {
			v.warnings = append(v.warnings, model.Warning{Kind: CannotWatch, Object: self, Message: source.name + ": " + trouble})
		}
		v.complete = v.complete && (answered[i] || source.optional)
	}
	if answered[0] {
		// Sorted by name from the start: Nodes are large to move about.
		s.Nodes = make([]model.Node, 0, len(c.nodes))
		for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
			e := c.nodes[name]
			s.Nodes = append(s.Nodes, e.node)
			v.warnings = append(v.warnings, e.warnings...)
		}
		if c.config.Node != "" && c.own == nil {
			v.complete = false
			v.warnings = append(v.warnings, model.Warning{Kind: NoSuchNode, Object: self, Message: "the API server knows no Node of this name; while that lasts nothing of the mesh is taken down. If the name is wrong, --hostname sets it"})
		}
	} else {
		s.Nodes = slices.Clone(c.kept.Snapshot.Nodes)
	}
	if answered[1] {
		for _, e := range c.peers {
			if e.peer.Name != "" {
				s.Peers = append(s.Peers, e.peer)
			}
			v.warnings = append(v.warnings, e.warnings...)
		}
	} else {
		s.Peers = slices.Clone(c.kept.Snapshot.Peers)
	}
	s.APIServers = c.apiServers(answered[2])
	s.Sort()
	s, more, next := Expire(s, time.Now())
	v.warnings = append(v.warnings, more...)
	c.wakeAt(next)
	if answered[1] {
		c.secrets.wantFor(s.Peers)
		var waiting bool
		s, more, waiting = keysFor(s, c.secrets.get, c.kept.Snapshot.Peers)
		v.warnings = append(v.warnings, more...)
		v.complete = v.complete && !waiting
		c.targets.wantFor(s.Peers)
		s, more, waiting = destinationsFor(s, c.targets.get, c.kept.Snapshot.Peers)
		v.warnings = append(v.warnings, more...)
		v.complete = v.complete && !waiting
	}
	v.warnings = append(v.warnings, c.resolveAll(&s)...)
	v.warnings = append(v.warnings, subnetWarnings(self, &s)...)

	s, more = Resolve(c.claims, s)
	v.warnings = append(v.warnings, more...)
	s, more = Admit(s)
	v.warnings = append(v.warnings, more...)
	slices.SortFunc(v.warnings, func(a, b model.Warning) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Message, b.Message))
	})
	v.snapshot = s
	if v.complete && c.disk != nil {
		c.disk.save(kept{Node: c.config.Node, Snapshot: s, Inputs: c.inputs})
	}
	c.view = v
	return v
}

// wakeAt has the next Snapshot made anew when a Peer's access ends; zero: does not.
func (c *Cluster) wakeAt(next time.Time) {
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
	if !next.IsZero() {
		c.expiry = time.AfterFunc(time.Until(next), c.touch)
	}
}

// apiServers collects where API servers are reached. Without word from the
// cluster what was known before still counts.
func (c *Cluster) apiServers(answered bool) []netip.AddrPort {
	all := slices.Clone(c.config.APIServers)
	server := c.server
	server.Addr, _ = c.resolve("", server, nil)
	all = append(all, server.AddrPort())
	if answered && len(c.slices) > 0 {
		for _, addrs := range c.slices {
			all = append(all, addrs...)
		}
	} else {
		all = append(all, c.kept.Snapshot.APIServers...)
	}
	all = slices.DeleteFunc(all, func(a netip.AddrPort) bool { return !a.IsValid() })
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// resolveAll gives endpoints with names their addresses, and says which names
// are in use.
func (c *Cluster) resolveAll(s *model.Snapshot) (warnings []model.Warning) {
	var hosts []string
	use := func(e model.Endpoint) {
		if e.Host != "" {
			hosts = append(hosts, e.Host)
		}
	}
	use(c.server)
	use(c.inputs.ForceEndpoint)
	for i := range s.Nodes {
		use(s.Nodes[i].Endpoint)
	}
	for i := range s.Peers {
		use(s.Peers[i].Endpoint)
	}
	slices.Sort(hosts)
	c.names.want(slices.Compact(hosts))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Endpoint.Host != "" {
			n.Endpoint.Addr, warnings = c.resolve("node/"+n.Name, n.Endpoint, warnings)
		}
	}
	for i := range s.Peers {
		p := &s.Peers[i]
		if p.Endpoint.Host != "" {
			p.Endpoint.Addr, warnings = c.resolve("peer/"+p.Name, p.Endpoint, warnings)
		}
	}
	return warnings
}

// resolve returns the address of an endpoint as far as it is known, and adds a
// warning where its name cannot be looked up.
func (c *Cluster) resolve(object string, e model.Endpoint, warnings []model.Warning) (netip.Addr, []model.Warning) {
	if e.Host == "" {
		return e.Addr, warnings
	}
	addr, problem := c.names.get(e.Host)
	if problem != "" {
		warnings = append(warnings, model.Warning{Kind: EndpointUnresolved, Object: object, Message: problemSentence(e.String(), problem, addr)})
	}
	return addr, warnings
}

func (c *Cluster) nodeChanged(object any, initial bool) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	in, warnings := ParseInputs(n, c.config.TopologyLabel)
	node, more := parseNode(n, in)
	entry := nodeEntry{node: node, warnings: append(slices.Clip(warnings), more...)}

	c.mu.Lock()
	old, known := c.nodes[n.Name]
	news := !known || !reflect.DeepEqual(old, entry)
	if news {
		c.nodes[n.Name] = entry
		if known && old.node.UID != node.UID {
			c.claims.Forget(old.node.UID)
		}
		at := Listed
		if !initial {
			c.moment++
			at = c.moment
		}
		c.claims.Observe(node, at)
	}
	if n.Name == c.config.Node {
		// Whatever else stands on the own Node matters to what is written there.
		news = news || !sameObject(c.own, n)
		c.own, c.inputs, c.wrong = n, in, warnings
		if c.written != nil && !newer(c.written, n) {
			c.written = nil
		}
	}
	c.mu.Unlock()
	if news {
		c.touch()
	}
}

// sameObject compares two slim Nodes but for their versions.
func sameObject(a, b *corev1.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.ResourceVersion, y.ResourceVersion = "", ""
	return reflect.DeepEqual(x, y)
}

// newer tells whether a is a later state of the same Node than b.
func newer(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID == b.UID && err == nil && order > 0
}

func (c *Cluster) nodeDeleted(object any) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	c.mu.Lock()
	c.claims.Forget(c.nodes[n.Name].node.UID)
	delete(c.nodes, n.Name)
	if n.Name == c.config.Node {
		c.own, c.written = nil, nil
	}
	c.mu.Unlock()
	c.touch()
}

func (c *Cluster) peerChanged(object any, _ bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	text, err := u.MarshalJSON()
	if err != nil {
		return // it came as JSON
	}
	entry := peerEntry{uid: string(u.GetUID()), generation: u.GetGeneration()}
	entry.peer, entry.warnings = decode(u.GetName(), text)
	entry.status = decodeStatus(text)
	c.mu.Lock()
	old, known := c.peers[u.GetName()]
	c.peers[u.GetName()] = entry
	// How a Peer fares is no news to those who decide that.
	old.status, entry.status = nil, nil
	news := !known || !reflect.DeepEqual(old, entry)
	c.mu.Unlock()
	if news {
		c.touch()
	}
}

func (c *Cluster) peerDeleted(object any) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	c.mu.Lock()
	delete(c.peers, u.GetName())
	c.mu.Unlock()
	c.touch()
}

func (c *Cluster) sliceChanged(object any, _ bool) {
	s, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	addrs := sliceAddresses(s)
	c.mu.Lock()
	news := !slices.Equal(c.slices[s.Name], addrs)
	c.slices[s.Name] = addrs
	c.mu.Unlock()
	if news {
		c.touch()
	}
}

func (c *Cluster) sliceDeleted(object any) {
	s, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	c.mu.Lock()
	delete(c.slices, s.Name)
	c.mu.Unlock()
	c.touch()
}

// sliceAddresses lists every address and port of an EndpointSlice, whether
// ready or not: an API server that is not ready is one all the same.
func sliceAddresses(s *discoveryv1.EndpointSlice) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range s.Endpoints {
		for _, text := range e.Addresses {
			addr, err := parseAddr(text)
			if err != nil {
				continue
			}
			for _, p := range s.Ports {
				if p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
					out = append(out, netip.AddrPortFrom(addr, uint16(*p.Port)))
				}
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// serverOf reads where a configuration reaches the API server; the zero
// Endpoint where that is no place that packets for other nodes go to.
func serverOf(c *rest.Config) model.Endpoint {
	if c == nil {
		return model.Endpoint{}
	}
	url, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return model.Endpoint{} // Run says what is wrong with it
	}
	port := cmp.Or(url.Port(), "443")
	if url.Scheme == "http" {
		port = cmp.Or(url.Port(), "80")
	}
	e, err := parseEndpoint(net.JoinHostPort(url.Hostname(), port))
	if err != nil {
		return model.Endpoint{} // a proxy on this node, say: nobody else's business
	}
	return e
}
