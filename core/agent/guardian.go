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

const (
	// announceFast and announceSlow are after how long those are told again who
	// serves that have not said that they heard it, at first and later.
	announceFast = 50 * time.Millisecond
	announceSlow = time.Second
	// announceAlways is how often everybody is told while a claim of this node's
	// stands: who was away meanwhile may have nobody else to hear it from.
	announceAlways = 5 * time.Second
	// claimPause keeps a node from taking over again and again.
	claimPause = 10 * time.Second
	// rankDelay is how much longer the next one of several that stand by waits.
	rankDelay = 300 * time.Millisecond
	// reachFor is how long a gateway of another location asks a node on our behalf.
	reachFor = 120 * time.Millisecond
)

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
// that did. Everything in it belongs to the goroutine of Run, but for the book.
type guardian struct {
	self    string
	secret  func(model.Key) (failover.Secret, error)
	mailbox func() (mailbox, error)
	echo    func(from netip.Addr) (echo, error)
	wake    func()
	save    func(*failover.Book) error
	log     *slog.Logger
	set     chan *duty

	mu   sync.Mutex
	book failover.Book

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
	failing  time.Time // since when the watch has said so
	reach    *reaching
	reachFor map[string]*favour
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
		set: make(chan *duty, 1), sockets: map[netip.Addr]echo{}, asked: map[exchange]failover.Way{}, unheard: map[string]bool{}, nonces: map[string]uint64{}, reachFor: map[string]*favour{}}
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
		return
	}
	g.favours(now, socket)
	g.announce(now)
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

// ask puts one question to every target, on both ways.
func (g *guardian) ask(now time.Time, socket func(netip.Addr) echo) {
	d := g.duty
	put := func(number uint64, w failover.Way, to netip.Addr) {
		if !to.IsValid() {
			return
		}
		from := d.self.InternalIP(to.Is4())
		if w == failover.Tunnel {
			from = d.self.WireGuardIP(to.Is4())
		}
		if s := socket(from); from.IsValid() && s != nil {
			g.asked[exchange{from, to}] = w
			_ = s.Send(to, uint16(number)) // no answer is answer enough
		}
	}
	for _, t := range d.targets {
		number := g.watch.Ask(now)
		put(number, failover.Members, t.Internal)
		if d.standby {
			put(number, failover.Tunnel, t.Tunnel)
		}
	}
	if neighbour := d.location.Gateway.InternalIP(true); d.standby && len(d.voters) == 0 && neighbour.IsValid() {
		if s := socket(d.self.InternalIP(true)); s != nil {
			_ = s.Send(neighbour, 0)
		}
	}
}

// answer takes a reply to a question.
func (g *guardian) answer(p pong, now time.Time) {
	for _, f := range g.reachFor {
		if f.to == p.from {
			f.yes = true
		}
	}
	if d := g.duty; d != nil && d.location.Gateway != nil && p.from == d.location.Gateway.InternalIP(true) {
		g.heardAt = now
	}
	if w, ok := g.asked[exchange{p.at, p.from}]; ok {
		g.watch.Answer(g.watch.Number(p.seq), w)
	}
}

// alone is for the location of two nodes.
func (g *guardian) alone(now time.Time) {
	d := g.duty
	neighbour := now.Sub(g.heardAt) < failover.Window
	if !neighbour {
		if g.reach != nil && now.Sub(g.reach.began) > 8*reachFor {
			g.reach = nil // what was true then may not be now
		}
		if g.reach == nil {
			g.log.Debug("asking others whether the gateway answers them", "gateway", d.location.Gateway.Name)
			g.reach = &reaching{began: now}
			for _, l := range d.tell {
				if l.Tunnel {
					g.send(l, failover.Message{Kind: failover.Reach, Location: d.location.Name, Claim: failover.Claim{Node: d.location.Gateway.Name}})
				}
			}
			return
		}
		if g.reach.answers == 0 || now.Sub(g.reach.began) < reachFor && !g.reach.answered {
			return
		}
	}
	if failover.Alone(neighbour, g.reach != nil && g.reach.answered) {
		g.claim(g.nextEpoch(), now)
	}
}

// nextEpoch is the one to serve this location under.
func (g *guardian) nextEpoch() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.book.Of(&g.duty.snapshot, g.duty.location.Name).Epoch + 1
}

// conclude takes over when the vote is won.
func (g *guardian) conclude(now time.Time) {
	if e := g.election; e != nil && e.Won() {
		g.election = nil
		g.claim(e.Epoch, now)
	}
}

// claim takes over.
func (g *guardian) claim(epoch uint64, now time.Time) {
	d := g.duty
	c := failover.Claim{Node: g.self, Epoch: epoch}
	if !g.note(d.location.Name, c) {
		return
	}
	g.began = now
	g.log.Warn("taking over as gateway", "location", d.location.Name, "from", d.location.Gateway.Name, "epoch", epoch)
	g.unheard = map[string]bool{}
	for _, l := range d.tell {
		g.unheard[l.Node.Name] = true
	}
	g.tellAll(now, func(listener) bool { return true })
}

// note takes a claim into the book, keeps it and has the node follow it.
func (g *guardian) note(location string, c failover.Claim) (news bool) {
	g.mu.Lock()
	news, err := g.book.Hear(&g.duty.snapshot, location, c)
	if news {
		if saveErr := g.save(&g.book); saveErr != nil {
			g.log.Error("a claim could not be kept on disk", "error", saveErr)
		}
	}
	g.mu.Unlock()
	if err != nil {
		g.log.Warn("a claim is not believed", "error", err)
	}
	if news {
		g.wake()
	}
	return news
}

// mine is the claim of this node that it serves, if it does.
func (g *guardian) mine() (failover.Claim, bool) {
	d := g.duty
	g.mu.Lock()
	defer g.mu.Unlock()
	c, heard := g.book.Heard(d.location.Name)
	return c, heard && c.Node == g.self && c == g.book.Of(&d.snapshot, d.location.Name)
}

// announce tells those who have not heard, and now and then everybody.
func (g *guardian) announce(now time.Time) {
	if _, serves := g.mine(); !serves {
		return
	}
	switch since := now.Sub(g.told); {
	case since >= announceAlways:
		g.tellAll(now, func(listener) bool { return true })
	case len(g.unheard) > 0 && (since >= announceSlow || since >= announceFast && now.Sub(g.began) < announceSlow):
		g.tellAll(now, func(l listener) bool { return g.unheard[l.Node.Name] })
	}
}

func (g *guardian) tellAll(now time.Time, which func(listener) bool) {
	c, _ := g.mine()
	g.told = now
	for _, l := range g.duty.tell {
		if which(l) {
			g.send(l, failover.Message{Kind: failover.Says, Location: g.duty.location.Name, Claim: c})
		}
	}
}

// receive takes a datagram. Whoever sent it proves to be a node that may speak of
// this, or nothing happens.
func (g *guardian) receive(m mail, now time.Time) {
	d := g.duty
	if d == nil {
		return
	}
	name, err := failover.Sender(m.payload)
	if err != nil {
		return
	}
	l, ok := d.listenerAt(name, m.from)
	if !ok {
		return
	}
	secret, err := g.secret(l.Node.Key)
	if err != nil {
		return
	}
	msg, err := failover.Open(m.payload, secret, l.Node.Key, d.self.Key)
	if err != nil || msg.To != g.self {
		g.log.Debug("a message is not believed", "from", name, "error", err)
		return
	}
	fresh := l.Tunnel || msg.Nonce == g.nonce
	switch msg.Kind {
	case failover.Ask:
		if msg.Claim.Node == name && msg.Location == d.location.Name && l.Node.Slot > 0 {
			g.send(l, failover.Message{Kind: failover.Ack, Nonce: msg.Own, Location: msg.Location, Claim: msg.Claim, Yes: g.watch.Fails(now)})
		}
	case failover.Ack:
		if fresh && g.election != nil && msg.Claim == (failover.Claim{Node: g.self, Epoch: g.election.Epoch}) {
			g.election.Ack(name, msg.Yes)
			g.freshen(l, msg.Own)
			g.conclude(now)
		}
	case failover.Says:
		if !fresh {
			g.send(l, failover.Message{Kind: failover.Prove, Nonce: msg.Own, Location: msg.Location, Claim: msg.Claim})
			return
		}
		// Nobody speaks for another node.
		if msg.Claim.Node == name {
			g.note(msg.Location, msg.Claim)
			g.send(l, failover.Message{Kind: failover.Heard, Nonce: msg.Own, Location: msg.Location, Claim: msg.Claim})
		}
	case failover.Prove:
		if c, serves := g.mine(); fresh && serves {
			g.freshen(l, msg.Own)
			g.send(l, failover.Message{Kind: failover.Says, Location: d.location.Name, Claim: c})
		}
	case failover.Heard:
		if fresh {
			delete(g.unheard, name)
		}
	case failover.Reach:
		if n := d.snapshot.Node(msg.Claim.Node); l.Tunnel && n != nil && n.Location == l.Node.Location {
			g.reachFor[name] = &favour{until: now.Add(reachFor), for_: l, nonce: msg.Own, to: n.WireGuardIP(true)}
		}
	case failover.Reached:
		if fresh && g.reach != nil {
			g.log.Debug("what others hear of the gateway", "from", name, "answers", msg.Yes)
			g.reach.answers++
			g.reach.answered = g.reach.answered || msg.Yes
		}
	}
}

// favours asks nodes on behalf of others, and answers these.
func (g *guardian) favours(now time.Time, socket func(netip.Addr) echo) {
	for name, f := range g.reachFor {
		if f.yes || !now.Before(f.until) {
			g.send(f.for_, failover.Message{Kind: failover.Reached, Nonce: f.nonce, Location: f.for_.Node.Location, Yes: f.yes})
			delete(g.reachFor, name)
			continue
		}
		if from := g.duty.self.WireGuardIP(true); f.to.IsValid() && from.IsValid() {
			if s := socket(from); s != nil {
				_ = s.Send(f.to, 0)
			}
		}
	}
}

// freshen keeps the nonce that another node gave last: what carries it was said
// during that agent's life, in which no epoch is news twice.
func (g *guardian) freshen(l listener, nonce uint64) { g.nonces[l.Node.Name] = nonce }

// send tells one node something.
func (g *guardian) send(l listener, m failover.Message) {
	if l.Node.Key.IsZero() {
		return // it has no agent that could listen
	}
	m.From, m.To, m.Own = g.self, l.Node.Name, g.nonce
	if m.Nonce == 0 {
		m.Nonce = g.nonces[l.Node.Name]
	}
	secret, err := g.secret(l.Node.Key)
	if err == nil {
		var payload []byte
		if payload, err = m.Seal(secret, g.duty.self.Key, l.Node.Key); err == nil {
			err = g.post.Send(l.From, l.To, payload)
		}
	}
	if err != nil {
		g.log.Debug("not told", "node", l.Node.Name, "kind", m.Kind, "error", err)
	}
}
