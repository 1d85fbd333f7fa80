package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"

	"github.com/kilo-overlay/kilo/core/state"
)

// Priorities of our chains (nft(8): mangle -150, filter 0, srcnat 100).
const (
	// Before and after whatever others do in the forward hook.
	tagPriority   = -400
	untagPriority = 1000
	clampPriority = -150
	// After conntrack (-200), before anybody looks at what it found.
	transitPriority = -190
	// After conntrack, before a Service's address is translated.
	limitPriority = -150
	strayPriority = 0
	// One before srcnat: what we bind to its source, no chain of the host CNI
	// or kube-proxy translates any more.
	sourcePriority = 99
	// After every translation, when a packet's way out is final.
	guardPriority = 300
)

// GuardChain is the chain that drops what would leave for another location in
// clear.
const GuardChain = "guard"

// The sets of table inet kilo; "4" or "6" is appended.
const (
	// remoteSet: prefixes of other locations and of Peers.
	remoteSet = "remote"
	// localSet: the own location's sources that the other side accepts.
	localSet = "local"
	// allowedSet: the own location's allowed-location-ips.
	allowedSet = "allowed"
	// ownSet: own ground inside some wider remote prefix.
	ownSet = "own"
	// peersSet: prefixes of Peers.
	peersSet = "peers"
	// bySet and toSet, with a Peer's name: its prefixes, and what it may begin
	// to speak to.
	bySet, toSet = "by-", "to-"
	// othersSet: the own location's other nodes, on a node that is armed.
	othersSet = "others"
	// callersSet: nodes of other locations, on an API server's node.
	callersSet = "callers"
)

// filter makes the table inet kilo. It stands on every node, whatever its role.
func (p *planner) filter() {
	f := &p.state.Filter
	sets := p.sets()
	limits := p.limits(sets)
	f.Sets = sets.list
	clamp := state.Chain{Name: "clamp", Type: state.FilterChain, Hook: "forward", Priority: clampPriority}
	strayForward := state.Chain{Name: "stray-forward", Type: state.FilterChain, Hook: "forward", Priority: strayPriority}
	strayOutput := state.Chain{Name: "stray-output", Type: state.FilterChain, Hook: "output", Priority: strayPriority}
	source := state.Chain{Name: "source", Type: state.NATChain, Hook: "postrouting", Priority: sourcePriority}
	guard := state.Chain{Name: GuardChain, Type: state.FilterChain, Hook: "postrouting", Priority: guardPriority}

	const byCNI = "WireGuard's own packets, as the host CNI marks them on their way out"
	tunnel := state.MarkIs{Mark: state.Mark}
	source.Rules = append(source.Rules, rule("WireGuard's own packets", state.Return{}, tunnel))
	guard.Rules = append(guard.Rules, rule("WireGuard's own packets", state.Accept{}, tunnel))
	for _, m := range p.facts.Adapter.TunnelMarks {
		made := state.MarkIs{Mark: m}
		source.Rules = append(source.Rules, rule(byCNI, state.Return{}, made))
		guard.Rules = append(guard.Rules, rule(byCNI, state.Accept{}, made))
	}
	for _, l := range p.tunnels() {
		guard.Rules = append(guard.Rules, rule("", state.Accept{}, state.OutInterface{Name: l.Name}))
	}
	strayOutput.Rules = append(strayOutput.Rules, rule("WireGuard's own packets", state.Return{}, tunnel))

	for _, m := range p.passes(sets) {
		const why = "API server, where no tunnel leads there"
		source.Rules = append(source.Rules, rule(why, state.Return{}, m...))
		guard.Rules = append(guard.Rules, rule(why, state.Accept{}, m...))
		strayForward.Rules = append(strayForward.Rules, rule(why, state.Return{}, m...))
		strayOutput.Rules = append(strayOutput.Rules, rule(why, state.Return{}, m...))
	}
	for _, m := range p.answersOutside() {
		guard.Rules = append(guard.Rules, rule("API server, asked outside of the mesh", state.Accept{}, m...))
	}
	for _, w := range p.waysToGateway() {
		guard.Rules = append(guard.Rules, rule("to the gateway", state.Accept{},
			state.OutInterface{Name: w.device}, state.NextHop{Addr: w.via}))
	}
	for _, v6 := range []bool{false, true} {
		if !sets.has(remoteSet, v6) {
			continue
		}
		in := func(source bool, set string) state.Match {
			return state.AddrInSet{V6: v6, Source: source, Set: name(set, v6)}
		}
		const from, to = true, false
		keep := state.KeepSource{V6: v6}

		clamp.Rules = append(clamp.Rules,
			rule("", state.ClampMSS{}, in(to, remoteSet), state.TCPSyn{}),
			rule("", state.ClampMSS{}, in(from, remoteSet), state.TCPSyn{}))

		// In: callers from other locations are seen as who they are, unless
		// this node itself sends them on (a NodePort, say): then the answer
		// must come back here.
		here := state.CtStatus{Not: true, Flag: "dnat"}
		if sets.has(localSet, v6) {
			source.Rules = append(source.Rules, rule("from other locations: the true source", keep,
				in(from, remoteSet), in(to, localSet), here))
		}
		if p.serving && sets.has(allowedSet, v6) {
			for _, l := range p.tunnels() {
				source.Rules = append(source.Rules, rule("allowed-location-ips know no way back", state.Masquerade{},
					state.InInterface{Name: l.Name}, in(to, allowedSet)))
			}
		}
		if sets.has(ownSet, v6) {
			own := in(to, ownSet)
			source.Rules = append(source.Rules, rule("own ground", state.Return{}, own))
			strayForward.Rules = append(strayForward.Rules, rule("own ground", state.Return{}, own))
			strayOutput.Rules = append(strayOutput.Rules, rule("own ground", state.Return{}, own))
			guard.Rules = append(guard.Rules, rule("own ground", state.Accept{}, own))
		}
		// Out: sources that the other side accepts are kept, all others are
		// translated to this node's address, here, where they start.
		foreign := []state.Match{in(to, remoteSet)}
		for _, set := range []string{localSet, allowedSet} {
			if sets.has(set, v6) {
				source.Rules = append(source.Rules, rule("to other locations: the true source", keep, in(to, remoteSet), in(from, set)))
				foreign = append(foreign, state.AddrInSet{V6: v6, Source: true, Not: true, Set: name(set, v6)})
			}
		}
		if a := p.source(!v6); a.IsValid() {
			source.Rules = append(source.Rules, rule("to other locations: a source they accept", state.SourceNAT{To: a}, in(to, remoteSet)))
		}
		if p.serving && sets.has(peersSet, v6) {
			source.Rules = append(source.Rules, rule("Peers beyond the mesh", state.Masquerade{},
				state.InInterface{Name: p.facts.Interface}, in(from, peersSet)))
		}
		// NAT looks at first packets only. A flow that began before its
		// destination moved into the tunnel keeps a source that the other side
		// drops: better reset than hanging.
		foreign = append(foreign, state.CtState{States: []string{"established"}}, state.CtOriginal{},
			state.CtStatus{Not: true, Flag: "snat"}, state.L4Proto{Proto: "tcp"})
		const stray = "begun outside the tunnel: its source is not accepted there"
		strayForward.Rules = append(strayForward.Rules, rule(stray, state.ResetTCP{}, foreign...))
		strayOutput.Rules = append(strayOutput.Rules, rule(stray, state.ResetTCP{}, foreign...))

		guard.Rules = append(guard.Rules, rule("to other locations only through the tunnel", state.Drop{}, in(to, remoteSet)))
	}
	f.Chains = []state.Chain{clamp, strayForward, strayOutput, source, guard}
	if len(limits.Rules) > 0 {
		f.Chains = append(f.Chains, limits)
	}
	if transit := p.transit(sets); len(transit.Rules) > 0 {
		f.Chains = append(f.Chains, transit)
	}
	if p.facts.TagForwarded {
		f.Chains = append(f.Chains, tagForwarded(sets)...)
	}
}

// transit makes the chain that lets pass what this node carries for others and has
// seen one direction of. While a gateway changes, a question goes by one node and
// its answer by the other, for whose conntrack an answer without a question is
// invalid; kube-proxy and many firewalls drop that when it is forwarded. Nothing is
// translated here between those two ends, so nothing is lost with conntrack's
// verdict: they judge for themselves, each having seen both directions. A packet
// that has a connection keeps it. What is this node's own, or a Peer's, is not in
// transit.
func (p *planner) transit(s *sets) state.Chain {
	chain := state.Chain{Name: "transit", Type: state.FilterChain, Hook: "prerouting", Priority: transitPriority}
	for _, v6 := range []bool{false, true} {
		if !s.has(othersSet, v6) || !s.has(remoteSet, v6) {
			continue
		}
		for _, out := range []bool{true, false} {
			m := []state.Match{
				state.CtState{States: []string{"invalid"}},
				state.AddrInSet{V6: v6, Source: out, Set: name(othersSet, v6)},
				state.AddrInSet{V6: v6, Source: !out, Set: name(remoteSet, v6)},
			}
			if s.has(peersSet, v6) {
				m = append(m, state.AddrInSet{V6: v6, Source: !out, Not: true, Set: name(peersSet, v6)})
			}
			chain.Rules = append(chain.Rules, rule("in transit, seen in one direction", state.NoTrack{}, m...))
		}
	}
	return chain
}

// limits makes the chain that keeps Peers to their destinations, and its sets. It
// stands where Peers come in, before a Service's address is translated, so that
// what is compared is what the Peer itself asked for. Answers pass. Only what
// begins at the Peer is looked at, in whatever state: one that is limited while
// it speaks to somebody else stops at once.
func (p *planner) limits(s *sets) state.Chain {
	chain := state.Chain{Name: "limits", Type: state.FilterChain, Hook: "prerouting", Priority: limitPriority}
	if !p.serving {
		return chain
	}
	for i := range p.snapshot.Peers {
		peer := &p.snapshot.Peers[i]
		if !peer.Limited() {
			continue
		}
		destinations := slices.Clone(peer.Destinations)
		for _, named := range peer.Named {
			destinations = append(destinations, named.Addresses...)
		}
		by, to := bySet+setWord(peer.Name), toSet+setWord(peer.Name)
		s.add(by, sortedPrefixes(peer.AllowedIPs))
		s.add(to, sortedPrefixes(destinations))
		for _, v6 := range []bool{false, true} {
			if !s.has(by, v6) {
				continue
			}
			from := []state.Match{state.InInterface{Name: p.facts.Interface}, state.AddrInSet{V6: v6, Source: true, Set: name(by, v6)}}
			if s.has(to, v6) {
				from = append(from, state.AddrInSet{V6: v6, Not: true, Set: name(to, v6)})
			}
			why := "peer " + peer.Name + " may not begin to speak to that"
			if len(why) > commentMost {
				why = "a Peer may not begin to speak to that"
			}
			chain.Rules = append(chain.Rules,
				rule(why, state.Drop{}, append(slices.Clone(from), state.CtOriginal{})...),
				rule("", state.Drop{}, append(slices.Clone(from), state.CtState{States: []string{"invalid", "untracked"}})...))
		}
	}
	return chain
}

// commentMost is what a rule's comment takes, in bytes.
const commentMost = 120

// setWord is a Peer's name as a part of a set's, which is shorter.
func setWord(peer string) string {
	const most = 200
	if len(peer) <= most {
		return peer
	}
	sum := sha256.Sum256([]byte(peer))
	return peer[:most] + "-" + hex.EncodeToString(sum[:4])
}

func sortedPrefixes(list []netip.Prefix) []netip.Prefix {
	out := slices.Clone(list)
	slices.SortFunc(out, comparePrefix)
	return out
}

// tagForwarded makes the chains that let others' rules know the mesh's traffic
// while it is forwarded: what comes from other locations or goes there, and what
// nodes and pods of the own location say to each other (a gateway's word to a
// member's pod that its packets are too large, say). It carries the mark in the
// forward hook and nowhere else, and there no bit changes that it came with: the
// host CNI reads an identity in it later.
func tagForwarded(sets *sets) []state.Chain {
	tag := state.Chain{Name: "tag", Type: state.FilterChain, Hook: "forward", Priority: tagPriority}
	untag := state.Chain{Name: "untag", Type: state.FilterChain, Hook: "forward", Priority: untagPriority}
	const plain = state.MarkForwarded | state.MarkForwardedPlain
	untag.Rules = append(untag.Rules, rule("", state.TakeMark{Bits: state.MarkForwardedPlain}, state.MarkIs{Mark: plain}))
	add := func(m ...state.Match) {
		tag.Rules = append(tag.Rules, rule("", state.AddMark{Bits: state.MarkForwarded}, m...))
		untag.Rules = append(untag.Rules, rule("", state.TakeMark{Bits: state.MarkForwarded}, m...))
	}
	for _, v6 := range []bool{false, true} {
		in := func(source bool, set string) state.Match {
			return state.AddrInSet{V6: v6, Source: source, Set: name(set, v6)}
		}
		if sets.has(remoteSet, v6) {
			add(in(true, remoteSet))
			add(in(false, remoteSet))
		}
		if sets.has(localSet, v6) {
			add(in(true, localSet), in(false, localSet))
		}
	}
	tag.Rules = append(tag.Rules, rule("", state.AddMark{Bits: state.MarkForwardedPlain}, state.MarkIs{Mark: state.MarkForwarded}))
	return []state.Chain{tag, untag}
}

func rule(comment string, action state.Action, matches ...state.Match) state.FilterRule {
	return state.FilterRule{Matches: matches, Action: action, Comment: comment}
}

func name(set string, v6 bool) string {
	if v6 {
		return set + "6"
	}
	return set + "4"
}

// way is a device and next hop that lead to the own location's gateway.
type way struct {
	device string
	via    netip.Addr
}

// waysToGateway are the ways that admitted routes take.
func (p *planner) waysToGateway() []way {
	var ways []way
	for i := range p.ways {
		r := &p.ways[i]
		if r.Device == p.facts.Interface || !r.Via.IsValid() {
			continue
		}
		w := way{r.Device, r.Via}
		// All routes of a node go by very few ways.
		if !slices.Contains(ways, w) {
			ways = append(ways, w)
		}
	}
	slices.SortFunc(ways, func(a, b way) int { return a.via.Compare(b.via) })
	return ways
}

// sets builds the sets that are not empty.
type sets struct{ list []state.Set }

func (s *sets) has(set string, v6 bool) bool {
	n := name(set, v6)
	return slices.ContainsFunc(s.list, func(s state.Set) bool { return s.Name == n })
}

// add makes a set of each family of prefixes, which are sorted, IPv4 first, and
// become the sets' own.
func (s *sets) add(set string, prefixes []netip.Prefix) {
	first6 := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return !p.Addr().Is4() })
	if first6 < 0 {
		first6 = len(prefixes)
	}
	for i, family := range [][]netip.Prefix{prefixes[:first6:first6], prefixes[first6:]} {
		elements := family[:0]
		for _, p := range family {
			// Sorted, an enclosing prefix comes first; intervals must not overlap.
			if n := len(elements); n == 0 || !covers(elements[n-1], p) {
				elements = append(elements, p)
			}
		}
		if v6 := i == 1; len(elements) > 0 {
			s.list = append(s.list, state.Set{Name: name(set, v6), V6: v6, Elements: elements})
		}
	}
}

func (p *planner) sets() *sets {
	remote := make([]netip.Prefix, 0, len(p.remote))
	var peers, local, allowed, others []netip.Prefix
	for i := range p.remote {
		r := &p.remote[i]
		remote = append(remote, r.prefix)
		if r.kind == peerKind {
			peers = append(peers, r.prefix)
		}
	}
	for i := range p.ground.claims {
		switch c := &p.ground.claims[i]; {
		case c.kind == peerKind || int(c.party) != p.own:
		case c.kind == allowedKind:
			allowed = append(allowed, c.prefix)
		case !c.mute:
			local = append(local, c.prefix)
			if c.node != p.self && len(p.links.standby) > 0 {
				others = append(others, c.prefix)
			}
		}
	}
	s := &sets{}
	s.add(remoteSet, remote)
	s.add(localSet, local)
	s.add(allowedSet, allowed)
	s.add(othersSet, others)
	s.add(ownSet, slices.Clone(p.shadowed))
	s.add(peersSet, peers)
	s.add(callersSet, slices.Clone(p.api.callers))
	return s
}
