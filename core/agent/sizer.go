package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// pathsPerTick bounds how many paths are looked at anew in one tick: with more
// of them each has its turn less often.
const pathsPerTick = 5

// sizeTarget is a node with a WireGuard peer here, whose path is to be measured.
type sizeTarget struct {
	Node     string
	To, From netip.Addr // WireGuard addresses: they lead over that peer or nowhere
	Top      int        // bytes that both tunnels allow
	// Met tells that there was a handshake lately. Without one nothing passes, and
	// what is sent waits in the device.
	Met bool
}

// sizeTargets are the nodes that the wanted state has as WireGuard peers.
func sizeTargets(s *model.Snapshot, wanted state.State, heard []PeerStatus, now time.Time, self string, mtu int) []sizeTarget {
	me := s.Node(self)
	if me == nil || mtu == 0 {
		return nil
	}
	met := map[model.Key]bool{}
	for i := range heard {
		met[heard[i].Key] = met[heard[i].Key] || see(&heard[i], now).session
	}
	var out []sizeTarget
	for _, peer := range wanted.Peers() {
		name, ok := strings.CutPrefix(peer.Name, "node/")
		if n := s.Node(name); ok && n != nil && n.TunnelMTU > 0 {
			for _, to := range n.WireGuardIPs {
				if from := me.WireGuardIP(to.Is4()); from.IsValid() {
					out = append(out, sizeTarget{name, to, from, min(mtu, n.TunnelMTU), met[n.Key]})
					break
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b sizeTarget) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// sizedEcho sends echo requests of any size from one address.
type sizedEcho interface {
	// Send sends a packet of that size in bytes, headers included, which nobody
	// on the way may take apart.
	Send(to netip.Addr, size int) error
	// Receive blocks for the next reply to one of our own and returns the size
	// of the request; it fails once Close was called.
	Receive() (from netip.Addr, size int, err error)
	Close() error
}

// sizer measures the paths to WireGuard peers. Without targets it does nothing.
type sizer struct {
	open func(from netip.Addr) (sizedEcho, error)
	wake func()
	log  *slog.Logger
	set  chan []sizeTarget

	mu  sync.Mutex
	mtu map[string]int // by node, of those that are known
}

func newSizer(open func(netip.Addr) (sizedEcho, error), wake func(), log *slog.Logger) *sizer {
	return &sizer{open: open, wake: wake, log: log, set: make(chan []sizeTarget, 1), mtu: map[string]int{}}
}

// Set says whose paths to measure from now on. It never blocks, and belongs to
// one goroutine.
func (s *sizer) Set(ts []sizeTarget) {
	select {
	case <-s.set:
	default:
	}
	s.set <- ts
}

// MTU returns what is known: node to the largest packet in bytes that reaches it
// whole.
func (s *sizer) MTU() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mtu)
}

type sizedReply struct {
	on   sizedEcho
	from netip.Addr
	size int
	err  error
}

// Run measures until ctx ends.
func (s *sizer) Run(ctx context.Context) error {
	var (
		targets []sizeTarget
		turn    int
		paths   = map[sizeTarget]*path{}
		sockets = map[netip.Addr]sizedEcho{}
		replies = make(chan sizedReply)
		readers sync.WaitGroup
		ticks   = time.NewTicker(pathTick)
	)
	defer readers.Wait()
	defer func() {
		for _, e := range sockets {
			_ = e.Close()
		}
	}()
	defer ticks.Stop()

	ask := func(t sizeTarget, sizes []int) {
		if len(sizes) == 0 {
			return
		}
		e := sockets[t.From]
		if e == nil {
			var err error
			if e, err = s.open(t.From); err != nil {
				s.log.Debug("cannot measure", "from", t.From, "error", err)
				return // the address may not be there yet
			}
			sockets[t.From] = e
			readers.Go(func() {
				for {
					from, size, err := e.Receive()
					select {
					case replies <- sizedReply{e, from, size, err}:
					case <-ctx.Done():
						return
					}
					if err != nil {
						return
					}
				}
			})
		}
		for _, size := range sizes {
			if err := e.Send(t.To, size); err != nil && !errors.Is(err, unix.EMSGSIZE) {
				s.log.Debug("not sent", "node", t.Node, "bytes", size, "error", err)
			}
		}
	}
	tick := func(now time.Time) {
		begun := 0
		for range targets {
			t := targets[turn%len(targets)]
			p := paths[t]
			if !t.Met {
				if begun < pathsPerTick && p.Knock(now) {
					begun++
					ask(t, []int{pathSmall})
				}
				turn = (turn + 1) % len(targets)
				continue
			}
			if goesOn := p.ticks > 0; p.Due(now) && (goesOn || begun < pathsPerTick) {
				if !goesOn {
					begun++
				}
				ask(t, p.Ask(now))
				s.tell(t, p.MTU())
			}
			turn = (turn + 1) % len(targets)
		}
	}

	for {
		var due <-chan time.Time
		if len(targets) > 0 {
			due = ticks.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()

		case next := <-s.set:
			if slices.Equal(next, targets) {
				continue
			}
			targets, turn = next, 0
			wanted := map[sizeTarget]bool{}
			nodes := map[string]bool{}
			from := map[netip.Addr]bool{}
			for _, t := range targets {
				wanted[t], nodes[t.Node], from[t.From] = true, true, true
				if paths[t] == nil {
					paths[t] = newPath(t.Top)
				}
			}
			maps.DeleteFunc(paths, func(t sizeTarget, _ *path) bool { return !wanted[t] })
			maps.DeleteFunc(sockets, func(a netip.Addr, e sizedEcho) bool {
				if !from[a] {
					_ = e.Close()
				}
				return !from[a]
			})
			s.mu.Lock()
			maps.DeleteFunc(s.mtu, func(node string, _ int) bool { return !nodes[node] })
			s.mu.Unlock()

		case r := <-replies:
			if r.err != nil {
				maps.DeleteFunc(sockets, func(_ netip.Addr, e sizedEcho) bool {
					if e == r.on {
						_ = e.Close()
					}
					return e == r.on
				})
				continue
			}
			for t, p := range paths {
				if t.To == r.from && sockets[t.From] == r.on {
					p.Heard(r.size)
				}
			}

		case now := <-due:
			tick(now)
		}
	}
}

// tell records what is known of a path, and wakes the loop when that is news.
func (s *sizer) tell(t sizeTarget, mtu int) {
	if mtu == 0 {
		return
	}
	s.mu.Lock()
	before := s.mtu[t.Node]
	s.mtu[t.Node] = mtu
	s.mu.Unlock()
	if before != mtu && (before != 0 || mtu < t.Top) {
		s.wake()
	}
}
