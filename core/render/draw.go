package render

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kilo-overlay/kilo/core/model"
)

// Drawing is the mesh's graph with every part in its place: what Graph says, for
// those who have no Graphviz. Lengths are in pixels, y goes down.
type Drawing struct {
	Width, Height int
	Title         string
	Groups        []Box // locations, and one for Peers; below everything
	Edges         []Edge
	Boxes         []Box // nodes and Peers, on top
}

// Stroke is how a line is drawn.
type Stroke string

// The strokes.
const (
	Solid  Stroke = "solid"
	Thick  Stroke = "thick"
	Dashed Stroke = "dashed"
	Dotted Stroke = "dotted"
)

// Box is a rectangle with lines of text; a group's only line is its title.
type Box struct {
	ID         string
	X, Y, W, H int
	Lines      []string
	Stroke     Stroke
}

// Edge connects two boxes, from border to border.
type Edge struct {
	From, To       string // IDs of boxes
	X1, Y1, X2, Y2 int
	Stroke         Stroke
	Blue           bool
	Label          string
}

// Sizes of text in a fixed-width font of 12 pixels, and the room around it.
const (
	charWidth, lineHeight = 7.3, 15
	padding, gap          = 8, 18
	titleHeight           = 22
)

// Draw lays the mesh out: the nodes of a location in a column, the columns on an
// ellipse, so that the lines between gateways have the middle to themselves.
func Draw(s model.Snapshot) Drawing {
	locations := reachable(s)
	var groups [][]Box // each group's box first, its members after it
	for _, r := range locations {
		title := r.Name
		if title == "" {
			title = "(no location)"
		}
		group := []Box{{ID: "location/" + r.Name, Lines: []string{oneLine(title)}, Stroke: Dashed}}
		nodes := slices.Clone(r.Nodes)
		slices.SortStableFunc(nodes, func(a, b *model.Node) int { // the gateway on top
			switch r.Gateway {
			case a:
				return -1
			case b:
				return 1
			}
			return 0
		})
		for _, n := range nodes {
			group = append(group, nodeBox(n, r))
		}
		groups = append(groups, group)
	}
	if len(s.Peers) > 0 {
		group := []Box{{ID: "peers", Lines: []string{"peers"}, Stroke: Dashed}}
		for i := range s.Peers {
			p := &s.Peers[i]
			group = append(group, textBox(peerID(p), Dashed, append(append([]string{p.Name}, texts(p.AllowedIPs)...), p.Endpoint.String())))
		}
		groups = append(groups, group)
	}
	d := Drawing{Title: join(s.WireGuardSubnets, ", ")}
	d.place(groups)
	d.connect(s, locations)
	return d
}

func nodeBox(n *model.Node, r reach) Box {
	title, stroke := n.Name, Solid
	switch {
	case n == r.Gateway:
		title, stroke = title+" (leader)", Thick
	case !n.Spoken:
		title, stroke = title+" (no agent)", Dotted
	}
	return textBox(n.Name, stroke, append([]string{title}, nodeLines(n, r)...))
}

// nodeLines is what pictures say of a node below its name.
func nodeLines(n *model.Node, r reach) []string {
	lines := texts(n.PodPrefixes)
	for _, p := range n.InternalIPs {
		lines = append(lines, p.Addr().String())
	}
	if n == r.Gateway {
		lines = append(lines, texts(n.WireGuardIPs)...)
	}
	lines = append(lines, n.Endpoint.String())
	if n == r.Gateway && !r.Learned.IsZero() {
		lines = append(lines, r.Learned.String()+" (learned)")
	}
	return lines
}

// textBox is as large as its lines; empty ones are left out.
func textBox(id string, stroke Stroke, lines []string) Box {
	b := Box{ID: id, Stroke: stroke}
	for _, l := range lines {
		if l == "" {
			continue
		}
		b.Lines = append(b.Lines, oneLine(l))
		b.W = max(b.W, int(math.Ceil(float64(utf8.RuneCountInString(l))*charWidth))+2*padding)
	}
	b.H = len(b.Lines)*lineHeight + 2*padding
	return b
}

// place gives every box its coordinates and the drawing its size.
func (d *Drawing) place(groups [][]Box) {
	widest, highest := 0, 0
	for _, g := range groups {
		g[0].W = int(float64(utf8.RuneCountInString(g[0].Lines[0]))*charWidth) + 2*padding
		g[0].H = titleHeight
		for i := range g[1:] {
			g[0].W = max(g[0].W, g[i+1].W+2*padding)
			g[0].H += g[i+1].H + padding
		}
		g[0].H += padding
		widest, highest = max(widest, g[0].W), max(highest, g[0].H)
	}
	// Neighbours on the ellipse are a group and some room for lines apart.
	n := float64(len(groups))
	rx, ry := 0.0, 0.0
	switch {
	case len(groups) == 2:
		rx = float64(widest)/2 + 60
	case len(groups) > 2:
		step := math.Sin(math.Pi / n)
		rx = max(float64(widest+80)/(2*step), float64(widest)/2+60)
		ry = max(float64(highest+60)/(2*step)*0.8, float64(highest)/2+30)
	}
	left, top, right, bottom := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	at := make([][2]float64, len(groups))
	for i, g := range groups {
		angle := 2*math.Pi*float64(i)/n - math.Pi // the first on the left
		x, y := rx*math.Cos(angle)-float64(g[0].W)/2, ry*math.Sin(angle)-float64(g[0].H)/2
		at[i] = [2]float64{x, y}
		left, top = min(left, x), min(top, y)
		right, bottom = max(right, x+float64(g[0].W)), max(bottom, y+float64(g[0].H))
	}
	if len(groups) == 0 {
		d.Width, d.Height = 200, 60
		return
	}
	const margin, title = gap, titleHeight
	d.Width, d.Height = int(right-left)+2*margin, int(bottom-top)+2*margin+title
	for i, g := range groups {
		g[0].X, g[0].Y = int(at[i][0]-left)+margin, int(at[i][1]-top)+margin+title
		y := g[0].Y + titleHeight
		for j := range g[1:] {
			b := &g[j+1]
			b.X, b.Y = g[0].X+(g[0].W-b.W)/2, y
			y += b.H + padding
		}
		d.Groups = append(d.Groups, g[0])
		d.Boxes = append(d.Boxes, g[1:]...)
	}
}

// connect draws the edges that Graph draws.
func (d *Drawing) connect(s model.Snapshot, locations []reach) {
	box := make(map[string]*Box, len(d.Boxes))
	for i := range d.Boxes {
		box[d.Boxes[i].ID] = &d.Boxes[i]
	}
	add := func(e Edge) {
		a, b := box[e.From], box[e.To]
		e.X1, e.Y1 = a.border(b)
		e.X2, e.Y2 = b.border(a)
		d.Edges = append(d.Edges, e)
	}
	for i, r := range locations {
		if r.Gateway == nil {
			continue
		}
		for _, n := range r.Nodes {
			if n != r.Gateway && n.Spoken {
				add(Edge{From: r.Gateway.Name, To: n.Name, Stroke: Solid})
			}
		}
		for _, other := range locations[i+1:] {
			if other.Gateway == nil {
				continue
			}
			e := Edge{From: r.Gateway.Name, To: other.Gateway.Name, Stroke: Solid}
			if r.unheard() && other.unheard() {
				e.Stroke, e.Label = Dotted, "no endpoint"
			}
			add(e)
		}
		for j := range s.Peers {
			add(Edge{From: r.Gateway.Name, To: peerID(&s.Peers[j]), Stroke: Dashed})
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for other, ok := range inOrder(answering(s, n)) {
			switch {
			case other < n.Name: // drawn from there
			case ok:
				add(Edge{From: n.Name, To: other, Stroke: Solid, Blue: true})
			default:
				add(Edge{From: n.Name, To: other, Stroke: Dotted, Blue: true, Label: "silent"})
			}
		}
	}
}

// border is where the line from b's middle to o's leaves b.
func (b *Box) border(o *Box) (x, y int) {
	cx, cy := float64(b.X)+float64(b.W)/2, float64(b.Y)+float64(b.H)/2
	dx, dy := float64(o.X)+float64(o.W)/2-cx, float64(o.Y)+float64(o.H)/2-cy
	if dx == 0 && dy == 0 {
		return int(cx), int(cy)
	}
	scale := math.Inf(1)
	if dx != 0 {
		scale = min(scale, float64(b.W)/2/math.Abs(dx))
	}
	if dy != 0 {
		scale = min(scale, float64(b.H)/2/math.Abs(dy))
	}
	return int(math.Round(cx + dx*scale)), int(math.Round(cy + dy*scale))
}

// Line returns where a line of the box's text begins, on its base line.
func (b *Box) Line(i int) (x, y int) { return b.X + padding, b.Y + padding + (i+1)*lineHeight - 4 }

// SVG returns the drawing as a picture that browsers show.
func (d Drawing) SVG() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">`, d.Width, d.Height)
	line(`<rect width="100%%" height="100%%" fill="white"/>`)
	line(`<text x="%d" y="%d" text-anchor="middle">%s</text>`, d.Width/2, gap, xmlText(d.Title))
	for i := range d.Groups {
		g := &d.Groups[i]
		line(`<g class="group"><title>%s</title>`, xmlText(g.ID))
		line(`<rect x="%d" y="%d" width="%d" height="%d" rx="8" fill="#f6f8fa" stroke="#888" stroke-dasharray="5,3"/>`, g.X, g.Y, g.W, g.H)
		line(`<text x="%d" y="%d" font-weight="bold">%s</text></g>`, g.X+padding, g.Y+lineHeight, xmlText(g.Lines[0]))
	}
	for _, e := range d.Edges {
		color := "#333"
		if e.Blue {
			color = "#06c"
		}
		line(`<g class="edge"><title>%s -- %s</title>`, xmlText(e.From), xmlText(e.To))
		line(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s"%s/>`, e.X1, e.Y1, e.X2, e.Y2, color, dashes(e.Stroke))
		if e.Label != "" {
			line(`<text x="%d" y="%d" text-anchor="middle" fill="%s">%s</text>`, (e.X1+e.X2)/2, (e.Y1+e.Y2)/2-3, color, xmlText(e.Label))
		}
		line(`</g>`)
	}
	for i := range d.Boxes {
		n := &d.Boxes[i]
		line(`<g class="node"><title>%s</title>`, xmlText(n.ID))
		line(`<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="white" stroke="#333"%s/>`, n.X, n.Y, n.W, n.H, dashes(n.Stroke))
		for j, l := range n.Lines {
			x, y := n.Line(j)
			line(`<text x="%d" y="%d">%s</text>`, x, y, xmlText(l))
		}
		line(`</g>`)
	}
	line(`</svg>`)
	return b.String()
}

func dashes(s Stroke) string {
	switch s {
	case Thick:
		return ` stroke-width="2.5"`
	case Dashed:
		return ` stroke-dasharray="6,4"`
	case Dotted:
		return ` stroke-dasharray="2,3"`
	}
	return ""
}

func xmlText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r == 0xfffe || r == 0xffff {
			return '?'
		}
		return r
	}, oneLine(s))
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(s)
}
