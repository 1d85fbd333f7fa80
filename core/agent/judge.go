package agent

import (
	"net/netip"
	"time"

	"github.com/kilo-overlay/kilo/core/failover"
)

const (
	// rankDelay is how much longer the next one of several that stand by waits.
	rankDelay = 300 * time.Millisecond
	// reachFor is how long a gateway of another location asks a node on our behalf.
	reachFor = 120 * time.Millisecond
)

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

// conclude takes over when the vote is won.
func (g *guardian) conclude(now time.Time) {
	if e := g.election; e != nil && e.Won() {
		g.election = nil
		g.claim(e.Epoch, now)
	}
}
