package render

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/report"
)

// Finding is something that is wrong, or will be.
type Finding struct {
	What  string `json:"what"`  // a CamelCase word
	Where string `json:"where"` // "node/e1", "location/east", "peer/laptop"
	Why   string `json:"why"`   // why it matters, with the values
	Do    string `json:"do"`    // what to do
	// Note tells that nothing is broken: it could be better.
	Note bool `json:"note,omitempty"`
}

// Same tells whether both are about one thing. What is said of it may differ: it
// holds numbers that change.
func (f Finding) Same(o Finding) bool { return f.What == o.What && f.Where == o.Where }

// Lasting leaves of what was found earlier what is found again, as it is told now.
func Lasting(earlier, now []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(now), func(f Finding) bool { return !slices.ContainsFunc(earlier, f.Same) })
}

// Broken tells whether one of the findings is more than a note.
func Broken(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return !f.Note })
}

// stale is how old the last handshake of two nodes that should be in touch may be:
// with packets on the way there is one every two minutes.
const stale = 5 * time.Minute

// Findings goes through what usually goes wrong. at is now.
func Findings(s model.Snapshot, warnings []model.Warning, live map[string]*report.Status, silent map[string]string, at time.Time) []Finding {
	f := findings{s: &s, live: live, at: at}
	f.nodes(silent)
	f.addresses()
	f.locations()
	f.links()
	f.paths()
	all := slices.Clone(warnings)
	for _, st := range live {
		all = append(all, st.Warnings...)
	}
	for _, w := range all {
		if w.Kind == "PodMTU" {
			continue // told already, with its values
		}
		f.add(w.Kind, w.Object, w.Message, "what the message says; it is told on the object too: kubectl get events")
		f.list[len(f.list)-1].Note = w.Note
	}
	slices.SortFunc(f.list, func(a, b Finding) int {
		return strings.Compare(a.Where+"\x00"+a.What+"\x00"+a.Why, b.Where+"\x00"+b.What+"\x00"+b.Why)
	})
	return slices.Compact(f.list)
}

type findings struct {
	s    *model.Snapshot
	live map[string]*report.Status
	at   time.Time
	list []Finding
}

func (f *findings) add(what, where, why, do string) {
	f.list = append(f.list, Finding{What: what, Where: where, Why: why, Do: do})
}

// nodes: who has no agent, and whose agent is not well.
func (f *findings) nodes(silent map[string]string) {
	for i := range f.s.Nodes {
		n := &f.s.Nodes[i]
		where := "node/" + n.Name
		switch {
		case !n.Spoken && f.live[n.Name] == nil:
			f.add("NoAgent", where, "no agent has published a key for it: nothing reaches its pods from other locations",
				"see whether kg runs there and may patch its Node: kubectl -n kube-system get pods -l app.kubernetes.io/name=kilo -o wide")
			continue
		case !n.Ready:
			f.add("NodeNotReady", where, "the cluster says that the node is not ready", "kubectl describe node "+n.Name)
		}
		if why, is := silent[n.Name]; is {
			f.add("AgentSilent", where, "its agent did not answer: "+why, "try --direct, or the agent's log")
		}
		st := f.live[n.Name]
		if st == nil {
			continue
		}
		for _, w := range st.Waiting {
			what := "AgentWaits"
			if strings.Contains(w, "forbids") {
				what = "RBAC"
			}
			f.add(what, where, w, "see what it waits for; the agent's log has more")
		}
		for _, e := range st.Last.Errors {
			f.add("AgentFails", where, e, "the agent tries again by itself; if it lasts, see its log")
		}
		if a := st.Adapter; a.BestPodMTU > 0 && a.PodMTU > a.BestPodMTU {
			f.add("PodMTU", where, fmt.Sprintf("pods of the node have an MTU of %d bytes, and %d are what fits every way to other locations: TCP is clamped, other large packets are refused", a.PodMTU, a.BestPodMTU),
				fmt.Sprintf("give the CNI's network an MTU of %d", a.BestPodMTU))
			f.list[len(f.list)-1].Note = true // as agents hold it
		}
	}
}

// addresses: what two nodes claim.
func (f *findings) addresses() {
	type claim struct {
		what, node string
		prefix     netip.Prefix
	}
	var claims []claim
	keys := map[model.Key]string{}
	for i := range f.s.Nodes {
		n := &f.s.Nodes[i]
		if other, taken := keys[n.Key]; taken && !n.Key.IsZero() {
			f.add("DuplicateKey", "node/"+n.Name, "nodes "+other+" and "+n.Name+" have one WireGuard key: one machine is a copy of the other",
				"on one of the two remove /var/lib/kilo and restart its agent")
		}
		keys[n.Key] = n.Name
		for _, p := range n.InternalIPs {
			claims = append(claims, claim{"internal address", n.Name, netip.PrefixFrom(p.Addr(), p.Addr().BitLen())})
		}
		for _, a := range n.WireGuardIPs {
			claims = append(claims, claim{"WireGuard address", n.Name, netip.PrefixFrom(a, a.BitLen())})
		}
		for _, p := range n.PodPrefixes {
			claims = append(claims, claim{"pod prefix", n.Name, p.Masked()})
		}
	}
	for i, c := range claims {
		for _, o := range claims[:i] {
			if c.node == o.node || !c.prefix.Overlaps(o.prefix) {
				continue
			}
			f.add("DuplicateAddress", "node/"+c.node, fmt.Sprintf("its %s %s overlaps the %s %s of node %s: only one of the two is reached from other locations", c.what, c.prefix, o.what, o.prefix, o.node),
				"give one of the two another one; kilo.squat.ai/force-internal-ip says an internal address")
		}
		for _, services := range f.s.ServicePrefixes {
			if c.prefix.Overlaps(services) {
				f.add("OverlapsServices", "node/"+c.node, fmt.Sprintf("its %s %s overlaps the range of Services %s: kube-proxy takes its packets for Services'", c.what, c.prefix, services), "the two have to be apart")
			}
		}
	}
}

// locations: which of them can be reached, and from where.
func (f *findings) locations() {
	var deaf []string
	all := reachable(*f.s)
	for _, r := range all {
		where := "location/" + r.Name
		if r.Gateway == nil {
			f.add("NoGateway", where, "no node of it can serve as gateway: it reaches nobody, and nobody reaches it", "see whether kg runs on its nodes")
			continue
		}
		if r.Gateway.Endpoint.Host != "" && !r.Gateway.Endpoint.Addr.IsValid() {
			f.add("EndpointUnresolved", "node/"+r.Gateway.Name, "its endpoint "+r.Gateway.Endpoint.String()+" does not resolve here: those whose resolver fares no better cannot speak to it", "correct kilo.squat.ai/force-endpoint, or the name's record")
		}
		if r.unheard() {
			deaf = append(deaf, r.Name)
		}
	}
	if len(deaf) > 1 {
		f.add("NoEndpoint", "location/"+deaf[0], fmt.Sprintf("of locations %q none has an endpoint: with each other they cannot begin", deaf), "set kilo.squat.ai/force-endpoint on a node of all but one of them, and open its UDP port")
	}
}

// links: tunnels that should carry and do not, as both ends see them.
func (f *findings) links() {
	for _, n := range f.s.Nodes {
		st := f.live[n.Name]
		if st == nil || st.Role != "gateway" {
			continue
		}
		for _, p := range st.Peers {
			name, isNode := strings.CutPrefix(p.Name, "node/")
			if !isNode {
				continue
			}
			switch {
			case p.LastHandshake == nil && p.Endpoint == "":
				f.add("NoHandshake", "node/"+n.Name, "it knows no endpoint of node "+name+", which has not spoken to it", "see that node "+name+" can send UDP to "+cmpEndpoint(&n))
			case p.LastHandshake == nil:
				f.add("NoHandshake", "node/"+n.Name, fmt.Sprintf("it has sent %s to node %s at %s, and no handshake came about: most often the UDP port is closed there, or the address is not the node's", Bytes(p.SentBytes), name, p.Endpoint),
					"open UDP "+p.Endpoint+" in firewalls and security groups on the way, or correct kilo.squat.ai/force-endpoint of node "+name)
			case f.at.Sub(*p.LastHandshake) > stale && p.SentBytes > 0 && f.carries(st, name):
				f.add("StaleHandshake", "node/"+n.Name, fmt.Sprintf("its last handshake with node %s at %s was %s", name, p.Endpoint, Ago(f.at.Sub(*p.LastHandshake))), "see whether node "+name+" is up, and UDP "+p.Endpoint+" still open")
			}
		}
		for _, l := range st.Locations {
			if l.Live != nil && !*l.Live {
				f.add("LocationSilent", "location/"+l.Name, "node "+n.Name+" asks it through the tunnel and has no answer", "kgctl status shows its gateway and links")
			}
		}
	}
}

// carries tells whether a node is expected to have something to say to another: it
// is asked for life signs, or one of the two keeps the link alive.
func (f *findings) carries(st *report.Status, to string) bool {
	n, other := f.s.Node(st.Node), f.s.Node(to)
	return n != nil && other != nil && (n.Keepalive > 0 || other.Keepalive > 0 || n.Endpoint.IsZero() || other.Endpoint.IsZero())
}

func cmpEndpoint(n *model.Node) string {
	if n.Endpoint.IsZero() {
		return "its address"
	}
	return n.Endpoint.String()
}

// paths: between one pod of each two locations.
func (f *findings) paths() {
	all := reachable(*f.s)
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.Gateway == nil || b.Gateway == nil || a.unheard() && b.unheard() {
				continue // told already
			}
			from, to := a.Gateway.InternalIP(true), b.Gateway.InternalIP(true)
			if !from.IsValid() || !to.IsValid() {
				continue
			}
			if p := Explain(*f.s, from, to); p.Breaks != "" {
				f.add("NoPath", "location/"+a.Name, fmt.Sprintf("to location %q: %s", b.Name, p.Breaks), fmt.Sprintf("kgctl explain %s %s", from, to))
			}
		}
	}
}

// FindingText is findings for people.
func FindingText(list []Finding) string {
	var b strings.Builder
	for _, f := range list {
		note := ""
		if f.Note {
			note = "  (a note: nothing is broken)"
		}
		fmt.Fprintf(&b, "%s  %s%s\n    %s\n    do: %s\n", f.What, oneLine(f.Where), note, oneLine(f.Why), oneLine(f.Do))
	}
	return b.String()
}
