package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/apply"
	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/self"
	"github.com/kilo-overlay/kilo/core/state"
)

// PeerStatus is what a device knows of one peer.
type PeerStatus = kernel.PeerStatus

// Cluster is Kubernetes, in and out; core/cluster has it.
type Cluster interface {
	// Run keeps Snapshot and Inputs up to date until ctx ends. It lives with
	// an API server that is away.
	Run(ctx context.Context) error
	// Changed receives after Snapshot or Inputs changed, once for many changes.
	Changed() <-chan struct{}
	// Snapshot returns what is known; false: not all of it was read from the
	// API server yet, or it is the last good one from the disk.
	Snapshot() (model.Snapshot, []model.Warning, bool)
	// Inputs returns what the local Node says; false: not read yet.
	Inputs() (model.Inputs, []model.Warning, bool)
	// Publish writes what differs, and nothing where nothing does.
	Publish(ctx context.Context, p model.Published) error
	// Clear takes back everything that Publish ever wrote.
	Clear(ctx context.Context) error
	// Condition tells a transition on the local Node; it writes only when
	// ready or reason is another than what stands there.
	Condition(ctx context.Context, ready bool, reason, message string) error
	// PeerStatuses tells on Peers how they fare, on transitions; one gateway of
	// the cluster calls it.
	PeerStatuses(ctx context.Context, h model.Heard) error
	// Event tells a warning where its owner looks. It does not wait, and may
	// be called again and again while the warning holds.
	Event(ctx context.Context, w model.Warning)
	// AddressesGone tells that the node no longer has the addresses for which
	// gone is true: nothing that was asked from them is answered any more.
	AddressesGone(gone func(netip.Addr) bool)
	// MissingPermissions names what the API server will not let us do.
	MissingPermissions(ctx context.Context) ([]string, error)
}

// Kernel is this node's; core/kernel has the real one.
type Kernel interface {
	apply.Kernel
	// Host returns the node's interfaces and default routes.
	Host(ctx context.Context) (model.Host, error)
	// Watch calls changed whenever something that concerns us may have
	// changed, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// Peers returns what the WireGuard device knows of its peers.
	Peers(ctx context.Context) ([]PeerStatus, error)
	// Cut ends the connections from and to prefixes; how many there were.
	Cut(ctx context.Context, prefixes []netip.Prefix) (int, error)
	// Greet has the device speak to a peer at once.
	Greet(ctx context.Context, key model.Key) error
}

// ErrNotYet is what a Device that somebody else is to make wraps while it is
// not there.
var ErrNotYet = errors.New("not there yet")

// Device is the WireGuard link as a thing that carries packets.
type Device interface {
	Kind() string // "kernel" or "userspace"
	// Done is closed when a device that this process serves ends; nil: never.
	Done() <-chan struct{}
	// Close stops a device that this process serves.
	Close()
}

// Config is what an Agent is made of. Everything without "optional" is needed.
type Config struct {
	// Node is the name of this node's Node object.
	Node      string
	Interface string
	Port      uint16
	Key       model.Key
	// MTU of the tunnel in bytes; 0: found out (TunnelMTU).
	MTU      int
	Gateways int
	Settings self.Settings

	Cluster Cluster
	Kernel  Kernel
	// Device makes the WireGuard link where it is missing and adopts it where
	// it is there, as often as it is called; the same device is the same value.
	// An error before the first success ends the agent, since a person has to
	// act on it, unless it is ErrNotYet.
	Device func(ctx context.Context, mtu int) (Device, error)
	// Adapter chooses the host CNI's adapter. It is asked until it succeeds.
	Adapter func(ctx context.Context) (adapter.Adapter, error)

	// Secret is what this node shares with the owner of a public key; optional:
	// without it nobody is told, and gateways that fail are noticed by the API
	// server alone.
	Secret func(model.Key) (failover.Secret, error)
	// FailoverPort is the UDP port on which agents tell each other who serves; 0:
	// they do not.
	FailoverPort uint16

	// Forward is the FORWARD chains of others; optional: nobody looks at them.
	Forward Forward
	// AcceptForwarded asks for an accept of ours in those that drop.
	AcceptForwarded bool
	// Dir is where what is foreign and was changed is recorded.
	Dir string

	// APIWrites counts the writes to the API server; optional.
	APIWrites func() float64

	ResyncPeriod time.Duration
	// Listen is where metrics, health and status are served; the zero value
	// means port 1107 of the node's internal address. Loopback is served with
	// the same port in any case.
	Listen netip.AddrPort
	// CleanUp removes everything but the WireGuard link when the agent ends,
	// and CleanUpInterface that too.
	CleanUp, CleanUpInterface bool
	Version                   string
	Log                       *slog.Logger

	// openEcho and openSized open sockets for probes; optional, for tests.
	openEcho  func(from netip.Addr) (echo, error)
	openSized func(from netip.Addr) (sizedEcho, error)
}

// DefaultPort is where metrics, health and status are served: Kilo's port.
const DefaultPort = 1107

const (
	settle     = 20 * time.Millisecond  // quiet that ends a burst of wake-ups
	settleMost = 200 * time.Millisecond // however long the burst lasts

	// Something that keeps undoing what we do is answered at once, and then at
	// this pace: a fight must not eat the machine.
	driftBurst = 10
	driftPace  = 1 // repairs a second

	passTimeout    = 30 * time.Second
	cleanUpTimeout = 15 * time.Second
	retryMin       = 500 * time.Millisecond
	listenEvery    = 3 * time.Second
	// permissionsEvery is the longest pause before asking again for what was
	// not permitted, or not answered.
	permissionsEvery = time.Minute
	// conditionPatience is how long after its start an agent that is not ready
	// leaves the Node condition as it was: restarts are no news.
	conditionPatience = 15 * time.Second
	// armedFor is how long a node has to be armed before it takes over from a
	// gateway that works: the others need a session with it.
	armedFor = 3 * time.Second
	// failingPatience is how long passes may fail before the condition says so.
	failingPatience = 30 * time.Second
)

// Agent runs the mesh on one node. Make it with New and call Run once.
type Agent struct {
	Config
	started time.Time
	metrics *metrics

	wake      *waker
	cni       *discoverer
	publisher *publisher
	prober    *prober
	sizer     *sizer
	guardian  *guardian // nil: nobody speaks of failover
	forwarder *forwarder
	server    *server

	// What follows belongs to the loop.
	memory     memory
	greeter    *greeter
	host       model.Host
	outsiders  []netip.Prefix // of Peers, as the last pass saw them
	home       *home          // as the last pass found it; nil: there was none
	device     Device
	missing    error        // why the device is not there; nil: it is
	applied    *state.State // the wanted state that was last applied without an error; nil: none
	pace       *rate.Limiter
	retry      backoff
	everServed bool
	armed      time.Time // since when the own Node object names a slot; zero: it does not
	failing    time.Time // since when every pass has failed; zero: the last did not
	said       transitions

	// ending tells that this process serves the WireGuard device.
	ending atomic.Bool

	// What follows is read by other goroutines.
	mu       sync.Mutex
	status   Status
	wanted   state.State
	forbids  []string               // what the API server will not let us do
	names    map[model.Key]string   // of peers, for people
	watching map[model.Key]sighting // peers without a session or a published endpoint, as the last pass saw them
	busy     time.Time              // when the running pass began; zero: none runs
}

// New makes an Agent.
func New(c Config) *Agent {
	a := &Agent{
		Config:  c,
		metrics: newMetrics(),
		wake:    newWaker(),
		pace:    rate.NewLimiter(driftPace, driftBurst),
		retry:   backoff{min: retryMin, max: max(c.ResyncPeriod, retryMin)},
	}
	if a.openEcho == nil {
		a.openEcho = openEcho
	}
	if a.openSized == nil {
		a.openSized = openSizedEcho
	}
	a.cni = newDiscoverer(c.Adapter, c.ResyncPeriod, func() { a.wake.Wake(becauseAdapter) }, a.failed("discover"), c.Log)
	a.publisher = newPublisher(publishTo(c.Cluster), c.Log, a.failed("publish"))
	a.prober = newProber(a.openEcho, func() { a.wake.Wake(becauseProbe) }, c.Log)
	a.sizer = newSizer(a.openSized, func() { a.wake.Wake(becauseProbe) }, c.Log)
	if c.Secret != nil && c.FailoverPort > 0 {
		a.guardian = newGuardian(c.Node, c.Secret, func() (mailbox, error) { return openMailbox(c.FailoverPort) }, a.openEcho,
			func() { a.wake.Wake(becauseClaim) }, func(b *failover.Book) error { return saveClaims(c.Dir, c.Node, b) }, c.Log)
		if err := loadClaims(c.Dir, c.Node, &a.guardian.book); err != nil {
			c.Log.Error("claims of earlier gateways are lost", "error", err)
		}
	}
	a.greeter = newGreeter(c.Key, c.Kernel, c.Log)
	a.forwarder = &forwarder{
		chains: c.Forward, accept: c.AcceptForwarded, dir: c.Dir, object: "node/" + c.Node, every: c.ResyncPeriod,
		wake: func() { a.wake.Wake(becauseForward) }, failed: a.failed("forward"),
		mended: func() { a.metrics.drift.WithLabelValues("forward").Inc() }, log: c.Log,
		hints: make(chan struct{}, 1), pace: rate.NewLimiter(driftPace, driftBurst),
	}
	a.metrics.registry.MustRegister(&peerCollector{read: func() []PeerReport { return a.peers(context.Background()) }, now: time.Now})
	if c.APIWrites != nil {
		a.metrics.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kilo_api_writes_total", Help: "Writes to the API server. At rest there are none."}, c.APIWrites))
	}
	p := &pages{status: a.Status, plan: a.planText, healthy: a.healthy, metrics: a.metrics.handler()}
	a.server = newServer(p.handler(), c.Log, a.failed("listen"))
	a.status = Status{Version: c.Version, Node: c.Node, Role: string(plan.Waiting), Key: c.Key,
		Tunnel: TunnelStatus{Interface: c.Interface, Port: c.Port, MTU: c.MTU}, Last: Pass{Snapshot: "none"}}
	return a
}

// failed counts errors by what failed.
func (a *Agent) failed(event string) func(error) {
	a.metrics.errors.WithLabelValues(event) // shown as 0 from the start
	return func(error) { a.metrics.errors.WithLabelValues(event).Inc() }
}

// Run runs the mesh until ctx ends, and then leaves the data path as it is
// unless CleanUp asks otherwise. A WireGuard device that this process serves
// ends with it in any case; guard and standing unreachables stay. A gateway that
// takes its device along has another node serve in its place first. The error is
// nil after an orderly end.
func (a *Agent) Run(asked context.Context) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(asked))
	defer stop()
	defer context.AfterFunc(asked, func() {
		defer stop()
		if a.guardian != nil && (a.CleanUp || a.ending.Load()) {
			bounded, cancel := context.WithTimeout(ctx, leaveMost+leaveAfter+time.Second)
			defer cancel()
			a.guardian.Leave(bounded)
		}
	})()
	a.started = time.Now()
	a.mu.Lock()
	a.status.Started = a.started
	a.mu.Unlock()
	a.Log.Info("agent starts", "version", a.Version, "node", a.Node, "interface", a.Interface, "port", a.Port, "key", a.Key)
	a.server.Listen(a.addresses(nil, nil))

	g, within := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Cluster.Run(within) })
	g.Go(func() error { return a.cni.Run(within) })
	g.Go(func() error {
		changed := func() { a.wake.Wake(becauseKernel) }
		return keepWatching(within, "the kernel", a.Log, a.failed("watch"), func(ctx context.Context) error { return a.Kernel.Watch(ctx, changed) }, changed)
	})
	g.Go(func() error { return a.prober.Run(within) })
	g.Go(func() error { return a.sizer.Run(within) })
	if a.Forward != nil {
		g.Go(func() error { return a.forwarder.Run(within) })
	}
	if a.guardian != nil {
		g.Go(func() error { return a.guardian.Run(within) })
	}
	g.Go(func() error { return a.publisher.Run(within) })
	g.Go(func() error { return a.permissions(within) })
	g.Go(func() error { return a.server.Run(within) })
	g.Go(func() error { return a.listener(within) })
	g.Go(func() error { return a.triggers(within) })
	g.Go(func() error { return a.loop(within) })
	err := g.Wait()
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, a.end())
}

// triggers turns what is no callback into wake-ups.
func (a *Agent) triggers(ctx context.Context) error {
	timer := time.NewTicker(a.ResyncPeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.Cluster.Changed():
			a.wake.Wake(becauseCluster)
		case <-timer.C:
			a.wake.Wake(becauseTimer)
		}
	}
}

// loop makes one pass a wake-up.
func (a *Agent) loop(ctx context.Context) error {
	// A pass that knows nothing of the host CNI yet would only add to what an
	// earlier agent left; most often the answer is there in a moment.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.cni.First():
	}
	a.wake.Wake(becauseTimer)
	for {
		why, err := a.wake.Wait(ctx, settle, settleMost)
		if err != nil {
			return err
		}
		if why == becauseKernel {
			// Repairs were paid for when they were made; see repaired.
			if !sleep(ctx, debt(a.pace)) {
				return ctx.Err()
			}
		}
		if err := a.pass(ctx, why); err != nil {
			return err
		}
	}
}

// debt is how long the next repair of drift has to wait; 0 most of the time.
func debt(pace *rate.Limiter) time.Duration {
	missing := 1 - pace.Tokens()
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / driftPace * float64(time.Second))
}

// again asks for another pass after d; 0: does not. One that comes after the
// end wakes nobody.
func (a *Agent) again(d time.Duration) {
	if d > 0 {
		time.AfterFunc(d, func() { a.wake.Wake(becauseRetry) })
	}
}

// sighting is what was seen of a peer.
type sighting struct {
	endpoint netip.AddrPort // where it was heard; one at which we only knock was not heard yet
	session  bool           // there was a handshake lately
	roams    bool           // it publishes no endpoint
}

func see(p *PeerStatus, now time.Time) (s sighting) {
	if p != nil && !p.LastHandshake.IsZero() {
		s.endpoint, s.session = p.Endpoint, now.Sub(p.LastHandshake) < sessionFor
	}
	return s
}

// listener notices that WireGuard heard a party that publishes no endpoint from
// a new address, or one that was silent: no kernel event tells.
func (a *Agent) listener(ctx context.Context) error {
	for sleep(ctx, listenEvery) {
		a.mu.Lock()
		before := a.watching
		a.mu.Unlock()
		if len(before) == 0 {
			continue
		}
		heard, err := a.Kernel.Peers(ctx)
		if err != nil {
			continue // the next pass reports it
		}
		now := time.Now()
		for i := range heard {
			old, watched := before[heard[i].Key]
			seen := see(&heard[i], now)
			if watched && (seen.session && !old.session || old.roams && seen.endpoint.IsValid() && seen.endpoint != old.endpoint) {
				a.wake.Wake(becausePeers)
				break
			}
		}
	}
	return ctx.Err()
}

// permissions asks the API server once what it will not let us do, and again
// while something is missing: agents that may not patch their Node leave holes
// in the mesh that nobody else can explain.
func (a *Agent) permissions(ctx context.Context) error {
	pause := backoff{min: time.Second, max: permissionsEvery}
	for {
		one, cancel := context.WithTimeout(ctx, publishTimeout)
		missing, err := a.Cluster.MissingPermissions(one)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			a.mu.Lock()
			news := !slices.Equal(a.forbids, missing)
			a.forbids = missing
			a.mu.Unlock()
			if news {
				a.wake.Wake(becauseRetry)
			}
			if len(missing) == 0 {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		if !sleep(ctx, pause.Next()) {
			return ctx.Err()
		}
	}
}

// end is what remains to be done when everything has stopped.
func (a *Agent) end() error {
	var failed error
	if a.CleanUp {
		ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
		defer cancel()
		a.Log.Info("cleaning up, as --clean-up asks")
		if a.Forward != nil {
			failed = second(TakeAcceptsOut(ctx, a.Forward, a.Dir))
		}
		failed = errors.Join(
			failed,
			second(RemoveAll(ctx, a.Kernel, a.CleanUpInterface)),
			a.Cluster.Clear(ctx),
		)
		if failed != nil {
			failed = fmt.Errorf("clean-up: %w", failed)
		}
	}
	if a.device != nil {
		a.device.Close()
	}
	a.Log.Info("agent ends", "dataPath", map[bool]string{true: "removed", false: "left in place"}[a.CleanUp])
	return failed
}

func second[T any](_ T, err error) error { return err }

// RemoveAll removes everything of ours from the kernel: filter, rules, routes,
// and the links unless they are to stay; a WireGuard link that stays loses its
// peers and addresses. It goes on after errors, reports what was done and
// returns what went wrong.
func RemoveAll(ctx context.Context, k apply.Kernel, links bool) (apply.Report, error) {
	var nothing state.State
	if !links {
		observed, err := k.Observe(ctx)
		if err != nil {
			return apply.Report{}, err
		}
		for _, l := range observed.Links {
			if l.Kind != state.WireGuard || l.Tunnel == nil {
				continue
			}
			tunnel := *l.Tunnel
			tunnel.Peers = nil
			l.Addresses, l.Tunnel, l.Down = nil, &tunnel, false
			nothing.Links = append(nothing.Links, l)
		}
	}
	return apply.Run(ctx, k, nothing)
}
