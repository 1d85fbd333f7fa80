package render

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
)

// Graph returns the mesh as a Graphviz digraph: a cluster for each location
// and one for Peers, nodes with their prefixes, addresses and endpoint, edges
// for what is connected. The line "(leader)" marks a location's gateway.
//
// Solid edges between leaders are tunnels, and so are blue ones between other
// nodes that meet directly; dotted ones are tunnels that cannot come up, because
// neither side has an endpoint, or do not answer. Dashed edges lead to Peers.
func Graph(s model.Snapshot) string {
	g := graph{}
	locations := reachable(s)
	g.line("digraph kilo {")
	g.line("\tlabel=%s;", quote(join(s.WireGuardSubnets, ", ")))
	g.line("\tlabelloc=t;")
	g.line("\toutputorder=nodesfirst;")
	g.line("\toverlap=false;")
	for _, r := range locations {
		g.location(r)
	}
	if len(s.Peers) > 0 {
		g.open("cluster_peers", "peers")
		for i := range s.Peers {
			p := &s.Peers[i]
			g.node(peerID(p), slices.Concat([]string{p.Name}, texts(p.AllowedIPs), []string{p.Endpoint.String()}), "")
		}
		g.line("\t}")
	}
	g.edges(s, locations)
	g.line("}")
	return g.String()
}

type graph struct{ strings.Builder }

func (g *graph) line(format string, args ...any) { fmt.Fprintf(g, format+"\n", args...) }

// open begins a subgraph that Graphviz draws as a box.
func (g *graph) open(id, label string) {
	g.line("\tsubgraph %s {", quote(id))
	g.line("\t\tlabel=%s;", quote(label))
	g.line("\t\tstyle=\"dashed,rounded\";")
}

func (g *graph) location(r reach) {
	label := r.Name
	if label == "" {
		label = "(no location)"
	}
	g.open("cluster_location_"+r.Name, label)
	for _, n := range r.Nodes {
		title, style := n.Name, ""
		switch {
		case n == r.Gateway:
			title, style = title+" (leader)", ", penwidth=2"
		case !n.Spoken:
			title, style = title+" (no agent)", ", style=dotted"
		}
		g.node(n.Name, append([]string{r.Name, title}, nodeLines(n, r)...), style)
	}
	g.line("\t}")
}

// node writes a node; empty lines of its label are left out.
func (g *graph) node(id string, lines []string, style string) {
	var quoted []string
	for _, l := range lines {
		if l != "" {
			quoted = append(quoted, escape(l))
		}
	}
	g.line("\t\t%s [label=\"%s\", shape=ellipse%s];", quote(id), strings.Join(quoted, `\n`), style)
}

func (g *graph) edges(s model.Snapshot, locations []reach) {
	for i, r := range locations {
		if r.Gateway == nil {
			continue
		}
		for _, n := range r.Nodes {
			if n != r.Gateway && n.Spoken {
				g.edge(r.Gateway.Name, n.Name, "")
			}
		}
		for _, other := range locations[i+1:] {
			if other.Gateway == nil {
				continue
			}
			style := ""
			if r.unheard() && other.unheard() {
				style = `, style=dotted, label="no endpoint"`
			}
			g.edge(r.Gateway.Name, other.Gateway.Name, style)
		}
		for j := range s.Peers {
			g.edge(r.Gateway.Name, peerID(&s.Peers[j]), ", style=dashed")
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for other, ok := range inOrder(answering(s, n)) {
			switch {
			case other < n.Name: // drawn from there
			case ok:
				g.edge(n.Name, other, ", color=blue")
			default:
				g.edge(n.Name, other, `, color=blue, style=dotted, label="silent"`)
			}
		}
	}
}

// inOrder goes through m by name.
func inOrder[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(name, m[name]) {
				return
			}
		}
	}
}

func (g *graph) edge(from, to, style string) {
	g.line("\t%s -> %s [dir=both%s];", quote(from), quote(to), style)
}

// unheard tells that nobody knows where the location's gateway is.
func (r *reach) unheard() bool { return r.Gateway.Endpoint.IsZero() && r.Learned.IsZero() }

// peerID keeps a Peer apart from a Node of the same name.
func peerID(p *model.Peer) string { return "peer/" + p.Name }

func quote(s string) string { return `"` + escape(s) + `"` }

// escape makes s stand for itself inside a quoted DOT string.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(oneLine(s))
}
