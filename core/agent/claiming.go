package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kilo-overlay/kilo/core/failover"
)

const (
	// announceFast and announceSlow are after how long those are told again who
	// serves that have not said that they heard it, at first and later.
	announceFast = 50 * time.Millisecond
	announceSlow = time.Second
	// announceAlways is how often everybody is told while a claim of this node's
	// stands: who was away meanwhile may have nobody else to hear it from.
	announceAlways = 5 * time.Second
	// innerMost is how long a stage of a change waits for nodes that do not say that
	// they heard.
	innerMost = 500 * time.Millisecond
	// comingMost is how long the others have to send a node that is about to serve
	// its own by its own tunnel, and passing how long what they sent another way is
	// on its way at most, more or less.
	comingMost = 300 * time.Millisecond
	passing    = 50 * time.Millisecond
	// comingFor is how long they do so for one that then does not serve.
	comingFor = 2 * time.Second
	// leaveMost bounds how long a gateway that ends looks for another one, and
	// heirFor how long each is asked.
	leaveMost = 2 * time.Second
	heirFor   = 400 * time.Millisecond
	// leaveAfter is how long it carries on when another one serves: as long as
	// the other locations may need to hear of it.
	leaveAfter = innerMost + 300*time.Millisecond
)

// nextEpoch is the one to serve this location under.
func (g *guardian) nextEpoch() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.book.Of(&g.duty.snapshot, g.duty.location.Name).Epoch + 1
}

// claim takes over from a gateway that has failed: everybody is told at once.
func (g *guardian) claim(epoch uint64, now time.Time) {
	g.log.Warn("taking over as gateway", "location", g.duty.location.Name, "from", g.duty.location.Gateway.Name, "epoch", epoch)
	g.begin(epoch, false, now)
}

// coming is a change before this node serves.
type coming struct {
	epoch       uint64
	began, told time.Time
	unready     map[string]bool // who has not said that its routes are ready
	ready       time.Time       // since when nobody is waited for; zero: somebody is
}

// serve takes over from a gateway that works. The old one goes on carrying what
// still comes its way. First the other locations send this node its own by its own
// tunnel: once it serves, its strict reverse path filter takes that no other way.
// Then this node's routes change, or what members send would go in circles; then
// those of its location's members, and when none sends by it any more the old
// gateway's, which for the same reason must not get by its network what it sends by
// its tunnel itself; and then the other locations'.
func (g *guardian) serve(epoch uint64, now time.Time) {
	d := g.duty
	if d == nil || !d.standby || d.location.Gateway == nil || epoch < g.nextEpoch() {
		return // what was asked for is over
	}
	if g.coming != nil && epoch <= g.coming.epoch {
		return
	}
	g.log.Info("about to serve as gateway", "location", d.location.Name, "instead of", d.location.Gateway.Name, "epoch", epoch)
	g.coming = &coming{epoch: epoch, began: now, unready: map[string]bool{}}
	for _, l := range d.tell {
		if l.Tunnel && !l.Node.Key.IsZero() {
			g.coming.unready[l.Node.Name] = true
		}
	}
	if len(g.coming.unready) == 0 {
		g.coming.ready = now.Add(-passing)
	}
	g.come(now)
}

// come goes on with serve, and begins when the others are ready, or when they had
// time enough.
func (g *guardian) come(now time.Time) {
	c, d := g.coming, g.duty
	if c == nil {
		return
	}
	if !d.standby || d.location.Gateway == nil || c.epoch < g.nextEpoch() {
		g.coming = nil // somebody else was faster
		return
	}
	if len(c.unready) == 0 && c.ready.IsZero() {
		c.ready = now
	}
	late := now.Sub(c.began) >= comingMost || now.Before(c.began)
	switch {
	case late || !c.ready.IsZero() && now.Sub(c.ready) >= passing:
		if late {
			g.log.Info("not all others were ready in time", "waited for", slices.Sorted(maps.Keys(c.unready)))
		}
		g.begin(c.epoch, true, now)
	case now.Sub(c.told) >= announceFast:
		c.told = now
		for _, l := range d.tell {
			if l.Tunnel && c.unready[l.Node.Name] {
				g.send(l, failover.Message{Kind: failover.Next, Location: d.location.Name, Claim: failover.Claim{Node: g.self, Epoch: c.epoch}})
			}
		}
	}
}

// expect follows a node of another location that is about to serve it, and tells
// whether it is believed.
func (g *guardian) expect(location string, c failover.Claim, now time.Time) bool {
	g.mu.Lock()
	news, err := g.book.Expect(&g.duty.snapshot, location, c, now.Add(comingFor))
	g.mu.Unlock()
	if err != nil {
		g.log.Warn("a node that says it will serve is not believed", "error", err)
		return false
	}
	if news {
		g.wake()
	}
	return true
}

// forget goes back where a node did not serve after all.
func (g *guardian) forget(now time.Time) {
	g.mu.Lock()
	dropped := g.book.Forget(now, comingFor)
	g.mu.Unlock()
	if dropped {
		g.wake()
	}
}

func (g *guardian) begin(epoch uint64, planned bool, now time.Time) {
	d := g.duty
	g.coming = nil
	g.setSpreading(planned) // before anybody sees the claim
	if !g.note(d.location.Name, failover.Claim{Node: g.self, Epoch: epoch}) {
		g.setSpreading(false)
		return
	}
	g.began, g.staged, g.stage, g.former = now, now, everybody, d.location.Gateway.Name
	if planned {
		g.stage = itself
	}
	g.unheard = map[string]bool{}
	for _, l := range d.tell {
		g.unheard[l.Node.Name] = true
	}
	g.tellAll(now, func(listener) bool { return true })
}

func (g *guardian) setSpreading(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spreading = yes
}

// Spreading tells that the node serves, and that those who read its Node object
// are not to know yet.
func (g *guardian) Spreading() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.spreading
}

// Serve asks for serving the location under an epoch, planned and not because
// something failed. It never blocks; what cannot be done now may be asked again.
func (g *guardian) Serve(epoch uint64) {
	select {
	case g.planned <- epoch:
	default:
	}
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
		g.setSpreading(false)
		return
	}
	if g.spread(now) {
		g.tellAll(now, func(l listener) bool { return g.unheard[l.Node.Name] })
		return
	}
	switch since := now.Sub(g.told); {
	case since >= announceAlways:
		g.tellAll(now, func(listener) bool { return true })
	case len(g.unheard) > 0 && (since >= announceSlow || since >= announceFast && now.Sub(g.began) < announceSlow):
		g.tellAll(now, func(l listener) bool { return g.unheard[l.Node.Name] })
	}
}

// stage is how far a planned change has come.
type stage int

const (
	everybody stage = iota // as far as it goes
	itself                 // this node's own routes change
	members                // and those of its location's nodes
	former                 // and those of the gateway before
)

// tells tells whether a node hears of the change by now.
func (g *guardian) tells(l listener) bool {
	switch g.stage {
	case itself:
		return false
	case members:
		return !l.Tunnel && l.Node.Name != g.former
	case former:
		return !l.Tunnel
	}
	return true
}

// spread goes on to the next stage when it is time, and tells whether it did.
func (g *guardian) spread(now time.Time) bool {
	late := now.Sub(g.staged) >= innerMost
	switch {
	case g.stage == itself && (late || g.duty.self.Epoch >= g.own().Epoch):
		if g.stage = members; !g.owes() {
			g.stage = former // a location of two
		}
	case g.stage == members && (late || !g.owes()):
		g.stage = former
	case g.stage == former && (late || !g.owes()):
		g.stage = everybody
		g.setSpreading(false)
		g.wake() // now the Node may say so
	default:
		return false
	}
	g.staged = now
	return true
}

// owes tells whether anybody who is to hear in this stage has not said that he did.
// One of an earlier stage was waited for then.
func (g *guardian) owes() bool {
	return slices.ContainsFunc(g.duty.tell, func(l listener) bool {
		return g.tells(l) && !l.Node.Key.IsZero() && g.unheard[l.Node.Name] && (g.stage == members || l.Node.Name == g.former)
	})
}

func (g *guardian) tellAll(now time.Time, which func(listener) bool) {
	c, _ := g.mine()
	g.told = now
	for _, l := range g.duty.tell {
		if which(l) && g.tells(l) {
			g.send(l, failover.Message{Kind: failover.Says, Location: g.duty.location.Name, Claim: c})
		}
	}
}

// leaving is a gateway's going away.
type leaving struct {
	done  chan struct{}
	began time.Time
	asked time.Time // when a node that stands by was last asked to serve; zero: ask now
	ever  bool      // it was asked at all
	since time.Time // since when another one serves
}

// Leave has another node serve in this one's place, and returns when it does, or
// when nobody can. ctx bounds it.
func (g *guardian) Leave(ctx context.Context) {
	done := make(chan struct{})
	select {
	case g.leave <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// goOnLeaving asks those that stand by, one after the other, and ends some time
// after another one serves: what is on its way still passes here.
func (g *guardian) goOnLeaving(now time.Time) {
	l, d := g.leaving, g.duty
	if l == nil {
		return
	}
	var heirs []listener
	for _, n := range d.location.Armed {
		if n == nil || n == d.self {
			continue
		}
		if i := slices.IndexFunc(d.tell, func(t listener) bool { return !t.Tunnel && t.Node == n }); i >= 0 {
			heirs = append(heirs, d.tell[i])
		}
	}
	switch serving := d.location.Gateway; {
	case !l.since.IsZero():
		if now.Sub(l.since) >= leaveAfter {
			g.left()
		}
	case serving != d.self && (serving != nil || len(heirs) == 0):
		if !l.ever {
			g.left() // it did not serve at all
			return
		}
		g.log.Info("another node serves in this one's place", "node", serving.Name)
		l.since = now
	case len(heirs) == 0 || now.Sub(l.began) >= leaveMost:
		g.log.Warn("nobody serves in this node's place: its location is cut off until it is back", "location", d.location.Name)
		g.left()
	case now.Sub(l.asked) >= announceFast:
		l.asked, l.ever = now, true
		heir := heirs[int(now.Sub(l.began)/heirFor)%len(heirs)]
		g.send(heir, failover.Message{Kind: failover.Yield, Location: d.location.Name, Claim: g.own()})
	}
}

// own is the claim under which this node serves, be it heard or published.
func (g *guardian) own() failover.Claim {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.book.Of(&g.duty.snapshot, g.duty.location.Name)
}

func (g *guardian) left() {
	if g.leaving != nil {
		close(g.leaving.done)
		g.leaving = nil
	}
}
