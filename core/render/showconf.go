package render

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
	"github.com/kilo-overlay/kilo/core/state"
)

// NodeConfig returns what the WireGuard link of a node holds, as the planner
// has it from the Snapshot. A member's link has no peers, which a note says.
// The error names a node that is not there or has no agent.
func NodeConfig(s model.Snapshot, node string, port uint16) (Config, error) {
	n, err := agentNode(s, node)
	if err != nil {
		return Config{}, err
	}
	facts := plan.Facts{
		Self: node, Port: port, Key: n.Key, TunnelMTU: n.TunnelMTU,
		Connected: connected(n), AdapterKnown: true, Direct: answering(s, n),
	}
	wanted, report := plan.Plan(s, facts, nil)
	c := Config{ListenPort: port, Notes: report.Waiting}
	if report.Role == plan.Member && len(wanted.Links[0].Tunnel.Peers) == 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("node %s is not the gateway of location %q, so its tunnel has no peers; see: kgctl showconf node %s",
			node, n.Location, report.Location.Gateway.Name))
	}
	for _, p := range wanted.Links[0].Tunnel.Peers {
		c.Peers = append(c.Peers, tunnelPeer(s, p))
	}
	return c, nil
}

// answering are the nodes that n has a link of its own with (granularity cross
// and full), those left out that it publishes as silent.
func answering(s model.Snapshot, n *model.Node) map[string]bool {
	out := map[string]bool{}
	for _, o := range plan.NewMesh(s).Links(n.Name) {
		out[o.Name] = !slices.Contains(n.Silent, o.Name) && !slices.Contains(o.Silent, n.Name)
	}
	return out
}

// connected is what a node's published addresses tell of its networks.
func connected(n *model.Node) (networks []netip.Prefix) {
	for _, p := range n.InternalIPs {
		if !p.IsSingleIP() {
			networks = append(networks, p.Masked())
		}
	}
	return networks
}

// tunnelPeer shows a planned peer. An endpoint that was given as a name is
// shown as that name.
func tunnelPeer(s model.Snapshot, p state.Peer) Peer {
	out := Peer{
		Comment: strings.Replace(p.Name, "/", " ", 1), Key: p.Key, PresharedKey: p.PresharedKey,
		AllowedIPs: union(p.AllowedIPs), Keepalive: p.Keepalive,
	}
	if name, ok := strings.CutPrefix(p.Name, "node/"); ok {
		n := s.Node(name)
		out.Comment = fmt.Sprintf("location %q, node %s", n.Location, n.Name)
		out.Name = name
		out.Endpoint = n.Endpoint
	} else if name, ok := strings.CutPrefix(p.Name, "peer/"); ok {
		out.Name = name
		if i := peerIndex(s, name); i >= 0 {
			out.Endpoint = s.Peers[i].Endpoint
		}
	}
	if out.Endpoint.IsZero() && p.Endpoint.IsValid() {
		out.Endpoint = model.Endpoint{Addr: p.Endpoint.Addr(), Port: p.Endpoint.Port()}
	}
	return out
}

// OutsideConfig returns what the party behind a Peer needs: one section for
// each location's gateway. Endpoint addresses are left out of all AllowedIPs,
// since tools such as wg-quick would send the tunnel's own packets into the
// tunnel. A note names each location that is left out. The error names a Peer
// that is not there.
func OutsideConfig(s model.Snapshot, peer string) (Config, error) {
	i := peerIndex(s, peer)
	if i < 0 {
		return Config{}, fmt.Errorf("no valid Peer %q in the cluster", peer)
	}
	me := &s.Peers[i]
	var c Config
	var served []reach
	for _, r := range reachable(s) {
		switch g := r.Gateway; {
		case g == nil:
			c.Notes = append(c.Notes, fmt.Sprintf("location %q is left out: no agent has spoken on any of its nodes", r.Name))
		case g.Endpoint.IsZero() && me.Endpoint.IsZero():
			c.Notes = append(c.Notes, fmt.Sprintf("location %q is left out: neither its node %s nor peer %s has an endpoint, so neither can begin; set annotation kilo.squat.ai/force-endpoint on a node of %[1]q, or spec.endpoint of the Peer",
				r.Name, g.Name, peer))
		default:
			served = append(served, r)
		}
	}
	if len(served) == 0 {
		c.Notes = append(c.Notes, "no location is left")
	}
	var endpoints []netip.Addr
	for _, r := range served {
		endpoints = appendEndpoint(endpoints, r.Gateway)
	}
	services := serviceLocation(served)
	for i, r := range served {
		p := locationPeer(r, me.Keepalive)
		p.PresharedKey = me.PresharedKey
		if p.Endpoint.IsZero() {
			p.Comment += "; it speaks first"
		}
		if i == services {
			p.AllowedIPs = union(p.AllowedIPs, s.ServicePrefixes)
		}
		p.AllowedIPs = without(p.AllowedIPs, endpoints)
		c.Peers = append(c.Peers, p)
	}
	return c, nil
}

// serviceLocation is the one section that gets the Services' prefixes, as any
// gateway can translate them and no prefix may be in two sections: the first
// that can be spoken to at any time.
func serviceLocation(served []reach) int {
	if i := slices.IndexFunc(served, func(r reach) bool { return !r.Gateway.Endpoint.IsZero() }); i >= 0 {
		return i
	}
	return 0
}

// LocationPeer returns a node's location as a peer for another WireGuard
// network, another cluster say: what the location's gateway carries, and the
// prefixes extra. Notes say what the reader may not expect. The error names a
// node that is not there, has no agent, or whose location nobody serves.
func LocationPeer(s model.Snapshot, node string, extra []netip.Prefix) (Peer, []string, error) {
	n, err := agentNode(s, node)
	if err != nil {
		return Peer{}, nil, err
	}
	all := reachable(s)
	r := all[slices.IndexFunc(all, func(r reach) bool { return r.Name == n.Location })]
	if r.Gateway == nil {
		return Peer{}, nil, fmt.Errorf("location %q of node %s has no gateway: no node of it publishes a key", n.Location, node)
	}
	var notes []string
	if r.Gateway.Name != n.Name {
		notes = append(notes, fmt.Sprintf("node %s is not the gateway of its location: this is node %s, which carries location %q", node, r.Gateway.Name, n.Location))
	}
	if r.Gateway.Endpoint.IsZero() {
		notes = append(notes, fmt.Sprintf("node %s has no endpoint: it has to speak first, to an endpoint of the other side", r.Gateway.Name))
	}
	p := locationPeer(r, r.Gateway.Keepalive)
	p.AllowedIPs = without(union(p.AllowedIPs, extra), appendEndpoint(nil, r.Gateway))
	return p, notes, nil
}

// LocationPeers returns every location that a gateway serves as LocationPeer does, by
// the location's name.
func LocationPeers(s model.Snapshot) map[string]Peer {
	out := map[string]Peer{}
	for _, r := range reachable(s) {
		if r.Gateway == nil {
			continue
		}
		p := locationPeer(r, r.Gateway.Keepalive)
		p.AllowedIPs = without(p.AllowedIPs, appendEndpoint(nil, r.Gateway))
		out[r.Name] = p
	}
	return out
}

// PeerAsPeer returns a Peer itself as a peer for another WireGuard network.
func PeerAsPeer(s model.Snapshot, peer string, extra []netip.Prefix) (Peer, error) {
	i := peerIndex(s, peer)
	if i < 0 {
		return Peer{}, fmt.Errorf("no valid Peer %q in the cluster", peer)
	}
	p := &s.Peers[i]
	return Peer{
		Comment: "peer " + p.Name, Name: p.Name, Key: p.Key, PresharedKey: p.PresharedKey, Endpoint: p.Endpoint,
		AllowedIPs: union(p.AllowedIPs, extra), Keepalive: p.Keepalive,
	}, nil
}

func locationPeer(r reach, keepalive time.Duration) Peer {
	return Peer{
		Comment:  fmt.Sprintf("location %q, node %s", r.Name, r.Gateway.Name),
		Name:     r.Gateway.Name,
		Key:      r.Gateway.Key,
		Endpoint: r.Gateway.Endpoint, AllowedIPs: union(r.Prefixes), Keepalive: keepalive,
	}
}

// appendEndpoint adds the address that a gateway is reached at, where it is known.
func appendEndpoint(addresses []netip.Addr, g *model.Node) []netip.Addr {
	if ap := g.Endpoint.AddrPort(); ap.IsValid() {
		return append(addresses, ap.Addr())
	}
	return addresses
}

func agentNode(s model.Snapshot, name string) (*model.Node, error) {
	n := s.Node(name)
	switch {
	case n == nil:
		return nil, fmt.Errorf("no node %q in the cluster", name)
	case !n.Spoken || n.Key.IsZero():
		return nil, fmt.Errorf("node %q has published no key: does the agent run there?", name)
	}
	return n, nil
}

func peerIndex(s model.Snapshot, name string) int {
	return slices.IndexFunc(s.Peers, func(p model.Peer) bool { return p.Name == name })
}
