package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/self"
	"github.com/kilo-overlay/kilo/core/state"
)

// The fixture is the design's: east with gateway e1 and member e2, west with w1.

func key(name string) model.Key { return sha256.Sum256([]byte(name)) }

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func endpointAt(text string) model.Endpoint {
	at := netip.MustParseAddrPort(text)
	return model.Endpoint{Addr: at.Addr(), Port: at.Port()}
}

func e1() model.Node {
	return model.Node{Name: "e1", UID: "1", Ready: true, Spoken: true, Location: "east", Key: key("e1"), Endpoint: endpointAt("198.51.100.1:51820"),
		InternalIPs: prefixes("10.0.0.1/24"), WireGuardIPs: addrs("10.4.0.1"), PodPrefixes: prefixes("10.244.1.0/24"),
		Granularity: model.PerLocation, Epoch: 1, Asked: "endpoint", TunnelMTU: 1420, Tunnel: "kernel"}
}

func e2() model.Node {
	return model.Node{Name: "e2", UID: "2", Ready: true, Spoken: true, Location: "east", Key: key("e2"),
		InternalIPs: prefixes("10.0.0.2/24"), PodPrefixes: prefixes("10.244.2.0/24"),
		Granularity: model.PerLocation, TunnelMTU: 1420, Tunnel: "kernel"}
}

func w1() model.Node {
	return model.Node{Name: "w1", UID: "3", Ready: true, Spoken: true, Location: "west", Key: key("w1"), Endpoint: endpointAt("203.0.113.9:51820"),
		InternalIPs: prefixes("192.168.9.9/24"), WireGuardIPs: addrs("10.4.0.2"), PodPrefixes: prefixes("10.244.9.0/24"),
		Granularity: model.PerLocation, Epoch: 1, Asked: "endpoint", TunnelMTU: 1420, Tunnel: "kernel"}
}

func snapshot(nodes ...model.Node) model.Snapshot {
	s := model.Snapshot{Nodes: nodes, ServicePrefixes: prefixes("10.96.0.0/12"), WireGuardSubnets: prefixes("10.4.0.0/16")}
	s.Sort()
	return s
}

// inputsOf is what the Node of one of the fixture's nodes says.
func inputsOf(n model.Node) model.Inputs {
	in := model.Inputs{LocationAnnotation: n.Location, NodeInternalIPs: []netip.Addr{n.InternalIPs[0].Addr()}, PodCIDRs: n.PodPrefixes}
	if !n.Endpoint.IsZero() {
		in.ForceEndpoint = n.Endpoint
	}
	return in
}

// fakeCluster is an API server with one writer: what is published is read back
// at once.
type fakeCluster struct {
	node string

	mu        sync.Mutex
	snap      model.Snapshot
	inputs    model.Inputs
	synced    bool
	away      bool
	changed   chan struct{}
	published []model.Published
	events    []model.Warning
	cleared   int
	speaker   string // who told last how Peers fare

	gone []netip.Addr // of the addresses that tests use

	conditions []string // each that differs from the one before
	forbids    []string
	// warned is what both the snapshot and the node's own inputs warn of.
	warned []model.Warning
}

func newFakeCluster(node model.Node, s model.Snapshot, synced bool) *fakeCluster {
	return &fakeCluster{node: node.Name, snap: s, inputs: inputsOf(node), synced: synced, changed: make(chan struct{}, 1)}
}

func (c *fakeCluster) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (c *fakeCluster) Changed() <-chan struct{}      { return c.changed }

func (c *fakeCluster) Snapshot() (model.Snapshot, []model.Warning, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snap, c.warned, c.synced
}

func (c *fakeCluster) Inputs() (model.Inputs, []model.Warning, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inputs, c.warned, c.synced
}

// change makes the cluster another one.
func (c *fakeCluster) change(f func(*fakeCluster)) {
	c.mu.Lock()
	f(c)
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *fakeCluster) setNode(n model.Node) {
	c.change(func(c *fakeCluster) {
		nodes := slices.DeleteFunc(slices.Clone(c.snap.Nodes), func(o model.Node) bool { return o.Name == n.Name })
		c.snap.Nodes = append(nodes, n)
		c.snap.Sort()
	})
}

func (c *fakeCluster) Publish(_ context.Context, p model.Published) error {
	c.mu.Lock()
	if c.away {
		c.mu.Unlock()
		return errors.New("connection refused")
	}
	me := *c.snap.Node(c.node)
	now := me
	now.Spoken, now.Key, now.Location, now.Endpoint, now.InternalIPs = !p.Key.IsZero(), p.Key, p.Location, p.Endpoint, p.InternalIPs
	now.WireGuardIPs, now.PodPrefixes, now.Granularity, now.Epoch, now.Asked = p.WireGuardIPs, p.PodPrefixes, p.Granularity, p.Epoch, p.Asked
	now.Discovered, now.TunnelMTU, now.Tunnel, now.NodesOnly = p.Discovered, p.TunnelMTU, p.Tunnel, p.NodesOnly
	now.Leader = c.inputs.Leader || p.FromFlags.Leader
	same := slices.Equal([]byte(nodeText(me)), []byte(nodeText(now)))
	if !same {
		c.published = append(c.published, p)
	}
	c.mu.Unlock()
	if !same {
		c.setNode(now)
	}
	return nil
}

func nodeText(n model.Node) string {
	s := model.Snapshot{Nodes: []model.Node{n}}
	b, err := jsonOf(s)
	if err != nil {
		panic(err)
	}
	return b
}

func (c *fakeCluster) Clear(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cleared++
	return nil
}

func (c *fakeCluster) Condition(_ context.Context, ready bool, reason, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if said := fmt.Sprint(ready, " ", reason); len(c.conditions) == 0 || c.conditions[len(c.conditions)-1] != said {
		c.conditions = append(c.conditions, said)
	}
	return nil
}

func (c *fakeCluster) AddressesGone(gone func(netip.Addr) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs("10.0.0.1", "10.0.0.9", "198.51.100.8", "198.51.100.9") {
		if gone(a) {
			c.gone = append(c.gone, a)
		}
	}
}

func (c *fakeCluster) MissingPermissions(context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forbids, nil
}

func (c *fakeCluster) PeerStatuses(_ context.Context, h model.Heard) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.speaker = h.Gateway
	return nil
}

func (c *fakeCluster) Event(_ context.Context, w model.Warning) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, w)
}

// me is what stands on the agent's own Node.
func (c *fakeCluster) me() *model.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	me := *c.snap.Node(c.node)
	return &me
}

// said are the conditions, each that differs from the one before.
func (c *fakeCluster) said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.conditions)
}

// writes returns what was published since it was last asked.
func (c *fakeCluster) writes() []model.Published {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.published
	c.published = nil
	return out
}

// fakeHost is an in-memory kernel with a host around it.
type fakeHost struct {
	*kerneltest.Kernel
	host model.Host

	mu      sync.Mutex
	changed func()
	heard   []PeerStatus
	greeted []model.Key
	cut     []netip.Prefix
	read    int // how often Peers was asked
}

func newFakeHost(n model.Node) *fakeHost {
	k := kerneltest.New("kilo0", n.Key)
	k.AddLink("eth0", n.InternalIPs[0])
	k.AddLink("flannel.1", netip.PrefixFrom(n.PodPrefixes[0].Addr(), 32))
	return &fakeHost{Kernel: k, host: model.Host{
		Interfaces: []model.Interface{
			{Index: 2, Name: "eth0", MTU: 1500, Up: true, Addresses: n.InternalIPs},
			{Index: 3, Name: "flannel.1", Kind: "vxlan", MTU: 1450, Up: true},
		},
		DefaultDevices: []string{"eth0"},
	}}
}

func (h *fakeHost) Host(context.Context) (model.Host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return model.Host{Interfaces: slices.Clone(h.host.Interfaces), DefaultDevices: h.host.DefaultDevices}, nil
}

// setMTU changes the uplink's, and says so.
func (h *fakeHost) setMTU(mtu int) {
	h.mu.Lock()
	h.host.Interfaces[0].MTU = mtu
	h.mu.Unlock()
	h.stir()
}

func (h *fakeHost) Watch(ctx context.Context, changed func()) error {
	h.mu.Lock()
	h.changed = changed
	h.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// stir is the kernel saying that something changed.
func (h *fakeHost) stir() {
	h.mu.Lock()
	changed := h.changed
	h.mu.Unlock()
	changed()
}

func (h *fakeHost) Peers(context.Context) ([]PeerStatus, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read++
	return slices.Clone(h.heard), nil
}

func (h *fakeHost) Cut(_ context.Context, p []netip.Prefix) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = append(h.cut, p...)
	return 0, nil
}

func (h *fakeHost) Greet(_ context.Context, k model.Key) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.greeted = append(h.greeted, k)
	return nil
}

func (h *fakeHost) hear(p PeerStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(slices.DeleteFunc(h.heard, func(o PeerStatus) bool { return o.Key == p.Key }), p)
}

// fakeCNI is Flannel's adapter with the discovery given.
type fakeCNI struct {
	*flannel.Adapter
	mu    sync.Mutex
	facts adapter.Facts
	err   error
	hint  func()
	asked int
}

func newFakeCNI(n model.Node) *fakeCNI {
	c := &fakeCNI{Adapter: flannel.New(flannel.Options{}), facts: adapter.Facts{
		CNI: "flannel", Mode: "vxlan", PodPrefixes: n.PodPrefixes, ClusterPrefixes: prefixes("10.244.0.0/16"),
		Device: "flannel.1", DeviceMTU: 1450, PodMTU: 1450,
	}}
	for _, o := range []model.Node{e1(), e2(), w1()} {
		if o.Name != n.Name {
			c.facts.NextHops = append(c.facts.NextHops, adapter.NextHop{Prefix: o.PodPrefixes[0], Via: o.PodPrefixes[0].Addr(), Device: "flannel.1", OnLink: true, MTU: 1450})
		}
	}
	return c
}

func (c *fakeCNI) Discover(context.Context) (adapter.Facts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.facts, c.err
}

func (c *fakeCNI) Watch(ctx context.Context, changed func()) error {
	c.mu.Lock()
	c.hint = changed
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *fakeCNI) change(f func(*fakeCNI)) {
	c.mu.Lock()
	f(c)
	hint := c.hint
	c.mu.Unlock()
	if hint != nil {
		hint()
	}
}

type fakeDevice struct{}

func (fakeDevice) Kind() string          { return "kernel" }
func (fakeDevice) Done() <-chan struct{} { return nil }
func (fakeDevice) Close()                {}

// rig is one agent with everything around it in memory. It runs in a bubble of
// its own time.
type rig struct {
	*Agent
	cluster *fakeCluster
	kernel  *fakeHost
	cni     *fakeCNI
	ether   *ether
	stop    func()
}

// prepare makes the agent of node n. Adjust may change the rig before it runs.
func prepare(t *testing.T, n model.Node, s model.Snapshot, adjust func(*rig)) *rig {
	t.Helper()
	r := &rig{
		cluster: newFakeCluster(n, s, true), kernel: newFakeHost(n), cni: newFakeCNI(n),
		ether: &ether{up: map[netip.Addr]bool{}, asked: map[netip.Addr]int{}, opened: map[netip.Addr]int{}},
	}
	r.Agent = New(Config{
		Node: n.Name, Interface: "kilo0", Port: 51820, Key: n.Key, Gateways: 2,
		Settings: self.Settings{Port: 51820, Granularity: model.PerLocation},
		Cluster:  r.cluster, Kernel: r.kernel,
		Device:       func(context.Context, int) (Device, error) { return fakeDevice{}, nil },
		Adapter:      func(context.Context) (adapter.Adapter, error) { return r.cni, nil },
		ResyncPeriod: 30 * time.Second,
		Log:          slog.New(slog.DiscardHandler),
		openEcho:     r.ether.open,
		openSized:    func(netip.Addr) (sizedEcho, error) { return nil, errors.New("nothing is measured here") },
	})
	// A bubble's clock stands still while somebody waits for the network.
	r.server.listen = func(context.Context, netip.AddrPort, http.Handler) (*http.Server, net.Listener, error) {
		return nil, nil, errors.New("no network here")
	}
	if adjust != nil {
		adjust(r)
	}
	return r
}

// start runs the agent of node n.
func start(t *testing.T, n model.Node, s model.Snapshot, adjust func(*rig)) *rig {
	t.Helper()
	r := prepare(t, n, s, adjust)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the agent ended with: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// settle lets everything that is due within d happen.
func (r *rig) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// route returns the unicast route of table 1107 to dst, or nil.
func (r *rig) route(t *testing.T, dst string) *state.Route {
	t.Helper()
	s, err := r.kernel.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Routes {
		if o := &s.Routes[i]; o.Table == state.TableOverlay && o.Type == state.Unicast && o.Dst == netip.MustParsePrefix(dst) {
			return o
		}
	}
	return nil
}

// peer returns a peer of the WireGuard link, or nil.
func (r *rig) peer(t *testing.T, name string) *state.Peer {
	t.Helper()
	s, err := r.kernel.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range s.Peers() {
		if peer.Key == key(name) {
			return peer
		}
	}
	return nil
}
