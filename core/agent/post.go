package agent

import (
	"net/netip"
	"time"

	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/model"
)

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
			g.owed[name] = failover.Message{Kind: failover.Heard, Nonce: msg.Own, Location: msg.Location, Claim: msg.Claim}
			g.acknowledge()
		}
	case failover.Next:
		// By the tunnel alone: it says about a tunnel that it works, too.
		if l.Tunnel && msg.Claim.Node == name && g.expect(msg.Location, msg.Claim, now) {
			g.ready[name] = failover.Message{Kind: failover.Ready, Nonce: msg.Own, Location: msg.Location, Claim: msg.Claim}
			g.acknowledge()
		}
	case failover.Ready:
		if c := g.coming; c != nil && l.Tunnel && msg.Claim == (failover.Claim{Node: g.self, Epoch: c.epoch}) {
			delete(c.unready, name)
			g.come(now)
		}
	case failover.Yield:
		switch {
		case msg.Claim.Node != name || msg.Location != d.location.Name || d.location.Gateway == nil || d.location.Gateway.Name != name:
		case !fresh:
			g.send(l, failover.Message{Kind: failover.Prove, Nonce: msg.Own, Location: msg.Location, Claim: msg.Claim})
		default:
			g.serve(max(g.nextEpoch(), msg.Claim.Epoch+1), now)
		}
	case failover.Prove:
		if g.leaving != nil && fresh && msg.Claim == g.own() {
			g.freshen(l, msg.Own)
			g.leaving.asked = time.Time{} // again, and at once
		}
		if c, serves := g.mine(); fresh && serves {
			g.freshen(l, msg.Own)
			g.send(l, failover.Message{Kind: failover.Says, Location: d.location.Name, Claim: c})
		}
	case failover.Heard:
		if fresh {
			delete(g.unheard, name)
			g.announce(now) // it may have been the last one waited for
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

// acknowledge tells those who serve that this node's routes follow them. What it
// only knows it does not say.
func (g *guardian) acknowledge() {
	g.pay(g.owed, func(n *model.Node, c failover.Claim) bool { return n.Epoch >= c.Epoch })
	g.pay(g.ready, func(n *model.Node, c failover.Claim) bool { return n.Next || n.Epoch >= c.Epoch })
}

// pay sends those acknowledgements that are true by now.
func (g *guardian) pay(owed map[string]failover.Message, follows func(*model.Node, failover.Claim) bool) {
	for name, m := range owed {
		if n := g.duty.snapshot.Node(m.Claim.Node); n != nil && !follows(n, m.Claim) {
			continue
		}
		delete(owed, name)
		for _, l := range g.duty.tell {
			if l.Node.Name == name {
				g.send(l, m)
			}
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
