package agent

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/model"
)

// claimPause keeps a node from taking over again and again.
const claimPause = 10 * time.Second

// mail is a datagram and where it came from.
type mail struct {
	from    netip.Addr
	payload []byte
}

// mailbox sends and receives the datagrams of agents.
type mailbox interface {
	Send(from, to netip.Addr, payload []byte) error
	Receive() (mail, error)
	Close() error
}

// guardian watches over the location's gateway, takes over, and hears of others
// that did. Everything in it belongs to the goroutine of Run, but for the book
// and the channels. What it sees and concludes is in judge.go, how a claim
// spreads in claiming.go, what agents say to each other in post.go.
type guardian struct {
	self    string
	secret  func(model.Key) (failover.Secret, error)
	mailbox func() (mailbox, error)
	echo    func(from netip.Addr) (echo, error)
	wake    func()
	save    func(*failover.Book) error
	log     *slog.Logger
	set     chan *duty
	planned chan uint64        // epochs to serve under, without anything having failed
	leave   chan chan struct{} // closed when another gateway serves in this one's place

	mu   sync.Mutex
	book failover.Book
	// spreading tells that a claim of this node's is not to be published yet.
	spreading bool

	// The rest is Run's.
	duty     *duty
	watch    failover.Watch
	election *failover.Election
	nonce    uint64            // of this agent's life
	nonces   map[string]uint64 // of others'
	post     mailbox
	sockets  map[netip.Addr]echo
	asked    map[exchange]failover.Way // which way a question to an address went
	heardAt  time.Time                 // the serving gateway's last answer on the own network
	unheard  map[string]bool
	told     time.Time // when everybody was last told
	began    time.Time // when the last claim was made
	stage    stage
	staged   time.Time // since when
	former   string    // the gateway before
	coming   *coming   // nil: this node is not about to serve
	leaving  *leaving
	failing  time.Time // since when the watch has said so
	reach    *reaching
	reachFor map[string]*favour
	owed     map[string]failover.Message // acknowledgements of claims, by whom they go to
	ready    map[string]failover.Message // of what is about to be claimed
}

// exchange is a socket and whom it asked.
type exchange struct{ from, to netip.Addr }

// reaching collects what other locations say of the own gateway's tunnel.
type reaching struct {
	began    time.Time
	answers  int
	answered bool
}

// favour is a question of another node that is being answered.
type favour struct {
	until time.Time
	for_  listener
	nonce uint64
	to    netip.Addr
	yes   bool
}

func newGuardian(self string, secret func(model.Key) (failover.Secret, error), box func() (mailbox, error), open func(netip.Addr) (echo, error), wake func(), save func(*failover.Book) error, log *slog.Logger) *guardian {
	g := &guardian{self: self, secret: secret, mailbox: box, echo: open, wake: wake, save: save, log: log,
		set: make(chan *duty, 1), planned: make(chan uint64, 1), leave: make(chan chan struct{}, 1), sockets: map[netip.Addr]echo{}, asked: map[exchange]failover.Way{}, unheard: map[string]bool{}, nonces: map[string]uint64{}, reachFor: map[string]*favour{}, owed: map[string]failover.Message{}, ready: map[string]failover.Message{}}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	g.nonce = binary.BigEndian.Uint64(b[:]) | 1
	return g
}

// Apply returns s as claims that were heard have it.
func (g *guardian) Apply(s model.Snapshot) model.Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.book.Apply(s)
}

// Set says what there is to do from now on. It never blocks, and belongs to one
// goroutine.
func (g *guardian) Set(d *duty) {
	select {
	case <-g.set:
	default:
	}
	g.set <- d
}

type pong struct {
	on   echo
	at   netip.Addr // the socket's own
	from netip.Addr
	seq  uint16
	err  error
}

// Run watches until ctx ends.
func (g *guardian) Run(ctx context.Context) error {
	var (
		mails   = make(chan mail)
		pongs   = make(chan pong)
		readers sync.WaitGroup
	)
	defer readers.Wait()
	defer func() {
		for _, s := range g.sockets {
			_ = s.Close()
		}
	}()
	post, err := g.openMailbox(ctx)
	if err != nil {
		return err
	}
	g.post = post
	defer post.Close()
	readers.Go(func() {
		for {
			m, err := post.Receive()
			if err != nil {
				return
			}
			select {
			case mails <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	socket := func(from netip.Addr) echo {
		if s := g.sockets[from]; s != nil {
			return s
		}
		s, err := g.echo(from)
		if err != nil {
			return nil // the address may not be there yet
		}
		g.sockets[from] = s
		readers.Go(func() {
			for {
				to, seq, err := s.Receive()
				select {
				case pongs <- pong{s, from, to, seq, err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		})
		return s
	}

	ticks := time.NewTicker(failover.Interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case d := <-g.set:
			g.take(d)
		case epoch := <-g.planned:
			g.serve(epoch, time.Now())
		case done := <-g.leave:
			g.leaving = &leaving{done: done, began: time.Now()}
		case m := <-mails:
			g.receive(m, time.Now())
		case p := <-pongs:
			if p.err != nil {
				_ = p.on.Close()
				if g.sockets[p.at] == p.on { // not one that took its place
					delete(g.sockets, p.at)
				}
				continue
			}
			g.answer(p, time.Now())
		case now := <-ticks.C:
			g.tick(now, socket)
		}
	}
}

// openMailbox waits for a port that is taken: an agent before this one may be
// about to end.
func (g *guardian) openMailbox(ctx context.Context) (mailbox, error) {
	said := false
	for {
		box, err := g.mailbox()
		if err == nil {
			return box, nil
		}
		if !said {
			g.log.Error("agents cannot be heard: gateways that fail are noticed by the API server alone", "error", err)
			said = true
		}
		if !sleep(ctx, 5*time.Second) {
			return nil, ctx.Err()
		}
	}
}

// take begins a new duty.
func (g *guardian) take(d *duty) {
	before := g.duty
	g.duty = d
	g.watch.Alone = d != nil && d.witness && !d.standby
	if before == nil || d == nil || before.location.Gateway == nil || d.location.Gateway == nil ||
		before.location.Name != d.location.Name || before.location.Gateway.Name != d.location.Gateway.Name {
		g.watch.Reset()
		g.election, g.reach, g.failing = nil, nil, time.Time{}
	}
	if d == nil {
		return
	}
	g.acknowledge()
	g.announce(time.Now())
	keep := map[netip.Addr]bool{}
	for _, a := range d.self.WireGuardIPs {
		keep[a] = true
	}
	for _, p := range d.self.InternalIPs {
		keep[p.Addr()] = true
	}
	for a, s := range g.sockets {
		if !keep[a] {
			_ = s.Close()
			delete(g.sockets, a)
		}
	}
}

// tick asks, judges and tells.
func (g *guardian) tick(now time.Time, socket func(netip.Addr) echo) {
	d := g.duty
	if d == nil {
		g.left()
		return
	}
	g.favours(now, socket)
	g.forget(now)
	g.come(now)
	g.announce(now)
	g.goOnLeaving(now)
	gateway := d.location.Gateway
	if gateway == nil || !d.standby && !d.witness {
		return
	}
	g.ask(now, socket)
	if !d.standby {
		return
	}
	if !g.watch.Fails(now) {
		g.election, g.reach, g.failing = nil, nil, time.Time{}
		return
	}
	if g.failing.IsZero() {
		g.failing = now
		g.log.Warn("the gateway answers others and does not carry what members send", "node", gateway.Name, "silent", now.Sub(g.watch.Heard()).Round(time.Millisecond).String())
	}
	if now.Sub(g.failing) < time.Duration(d.rank)*rankDelay || !g.began.IsZero() && now.Sub(g.began) < claimPause {
		return
	}
	if len(d.voters) == 0 {
		g.alone(now)
		return
	}
	if g.election == nil || g.election.Over(now) {
		epoch := g.nextEpoch()
		g.election = failover.NewElection(epoch, d.voters, now)
		for _, l := range d.tell {
			if !l.Tunnel && l.Node != gateway {
				g.send(l, failover.Message{Kind: failover.Ask, Location: d.location.Name, Claim: failover.Claim{Node: g.self, Epoch: epoch}})
			}
		}
	}
	g.conclude(now)
}
