package render

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/report"
)

// View is the mesh at one moment: what the cluster says, and what the agents that
// were asked say themselves.
type View struct {
	Nodes     []NodeView      `json:"nodes"`
	Locations []LocationView  `json:"locations"`
	Links     []LinkView      `json:"links,omitempty"`
	Peers     []PeerView      `json:"peers,omitempty"`
	Warnings  []model.Warning `json:"warnings,omitempty"`
	// Silent are the agents that did not answer, and why.
	Silent []SilentView `json:"silent,omitempty"`
}

// NodeView is one node.
type NodeView struct {
	Name         string         `json:"name"`
	Location     string         `json:"location"`
	Role         string         `json:"role"` // "gateway", "member", "no agent"
	NodeReady    bool           `json:"nodeReady"`
	AgentReady   *bool          `json:"agentReady,omitempty"` // nil: it did not say
	Endpoint     string         `json:"endpoint,omitempty"`
	Learned      bool           `json:"learned,omitempty"` // somebody heard it there; it says none
	InternalIPs  []netip.Prefix `json:"internalIPs,omitempty"`
	WireGuardIPs []netip.Addr   `json:"wireGuardIPs,omitempty"`
	PodPrefixes  []netip.Prefix `json:"podPrefixes,omitempty"`
	// Handshake is the latest with anybody.
	Handshake *time.Time `json:"lastHandshake,omitempty"`
	Tunnel    string     `json:"tunnel,omitempty"`
	Waiting   []string   `json:"waiting,omitempty"`
}

// LocationView is one location.
type LocationView struct {
	Name    string `json:"name"`
	Gateway string `json:"gateway,omitempty"`
	Why     string `json:"why,omitempty"`
	Nodes   int    `json:"nodes"`
}

// LinkView is a WireGuard peer as one node's device has it.
type LinkView struct {
	Node      string     `json:"node"`
	To        string     `json:"to"` // "node/w1", "peer/laptop"
	Endpoint  string     `json:"endpoint,omitempty"`
	Handshake *time.Time `json:"lastHandshake,omitempty"`
	Received  int64      `json:"receivedBytes"`
	Sent      int64      `json:"sentBytes"`
	Tunnel    string     `json:"tunnel,omitempty"`
}

// PeerView is a Peer and the gateway that heard it last.
type PeerView struct {
	Name       string         `json:"name"`
	AllowedIPs []netip.Prefix `json:"allowedIPs"`
	Endpoint   string         `json:"endpoint,omitempty"` // where it was heard, else where it should be
	Gateway    string         `json:"gateway,omitempty"`
	Handshake  *time.Time     `json:"lastHandshake,omitempty"`
	Received   int64          `json:"receivedBytes"` // by all gateways
	Sent       int64          `json:"sentBytes"`
	ExpiresAt  *time.Time     `json:"expiresAt,omitempty"`
}

// SilentView is an agent that did not answer.
type SilentView struct {
	Node string `json:"node"`
	Why  string `json:"why"`
}

// Look puts a View together. live has the answers of agents by node, silent why
// others gave none; both may be empty, and only what the cluster says is shown.
func Look(s model.Snapshot, warnings []model.Warning, live map[string]*report.Status, silent map[string]string) View {
	var v View
	v.Warnings = slices.Clone(warnings)
	for _, r := range reachable(s) {
		l := LocationView{Name: r.Name, Nodes: len(r.Nodes)}
		if r.Gateway != nil {
			l.Gateway, l.Why = r.Gateway.Name, "best candidate; nobody has claimed to serve yet"
			if r.Claimed {
				l.Why = fmt.Sprintf("it claimed to, epoch %d", r.Gateway.Epoch)
			}
			if st := live[r.Gateway.Name]; st != nil {
				for _, said := range st.Locations {
					if said.Name == r.Name && said.Gateway == r.Gateway.Name {
						l.Why = said.Why
					}
				}
			}
		} else {
			l.Why = "no node of it has an agent that has spoken"
		}
		v.Locations = append(v.Locations, l)
		for _, n := range r.Nodes {
			v.node(n, r, live[n.Name])
		}
	}
	v.peers(s)
	for node, why := range inOrder(silent) {
		v.Silent = append(v.Silent, SilentView{node, why})
	}
	slices.SortFunc(v.Warnings, func(a, b model.Warning) int {
		return cmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Message, b.Message))
	})
	v.Warnings = slices.Compact(v.Warnings)
	return v
}

func (v *View) node(n *model.Node, r reach, st *report.Status) {
	one := NodeView{
		Name: n.Name, Location: n.Location, Role: "member", NodeReady: n.Ready, Endpoint: n.Endpoint.String(),
		InternalIPs: n.InternalIPs, WireGuardIPs: n.WireGuardIPs, PodPrefixes: n.PodPrefixes, Tunnel: n.Tunnel,
	}
	switch {
	case n == r.Gateway:
		one.Role = "gateway"
		if !r.Learned.IsZero() {
			one.Endpoint, one.Learned = r.Learned.String(), true
		}
	case !n.Spoken:
		one.Role = "no agent"
	}
	if st != nil {
		one.AgentReady, one.Waiting = &st.Ready, append(slices.Clone(st.Waiting), st.Last.Errors...)
		v.Warnings = append(v.Warnings, st.Warnings...)
		for _, p := range st.Peers {
			v.Links = append(v.Links, LinkView{
				Node: n.Name, To: p.Name, Endpoint: p.Endpoint, Handshake: p.LastHandshake,
				Received: p.ReceivedBytes, Sent: p.SentBytes, Tunnel: st.Tunnel.Kind,
			})
			if p.LastHandshake != nil && (one.Handshake == nil || one.Handshake.Before(*p.LastHandshake)) {
				one.Handshake = p.LastHandshake
			}
		}
	}
	v.Nodes = append(v.Nodes, one)
}

func (v *View) peers(s model.Snapshot) {
	for i := range s.Peers {
		p := &s.Peers[i]
		one := PeerView{Name: p.Name, AllowedIPs: p.AllowedIPs, Endpoint: p.Endpoint.String()}
		if !p.ExpiresAt.IsZero() {
			one.ExpiresAt = &p.ExpiresAt
		}
		for _, l := range v.Links {
			if l.To != "peer/"+p.Name {
				continue
			}
			one.Received, one.Sent = one.Received+l.Received, one.Sent+l.Sent
			if l.Handshake != nil && (one.Handshake == nil || one.Handshake.Before(*l.Handshake)) {
				one.Handshake, one.Gateway, one.Endpoint = l.Handshake, l.Node, l.Endpoint
			}
		}
		v.Peers = append(v.Peers, one)
	}
}

// NodeTable shows the nodes.
func (v View) NodeTable(at time.Time) Table {
	t := Table{Header: []string{"NODE", "LOCATION", "ROLE", "ENDPOINT", "WIREGUARD", "PODS", "AGENT", "HANDSHAKE", "TUNNEL"}}
	for _, n := range v.Nodes {
		role, endpoint, agent := n.Role, n.Endpoint, ""
		if !n.NodeReady {
			role += ", not ready"
		}
		if n.Learned {
			endpoint += " (learned)"
		}
		if n.AgentReady != nil {
			agent = "ready"
			if !*n.AgentReady {
				agent = "waiting"
			}
		}
		t.Rows = append(t.Rows, []string{n.Name, n.Location, role, endpoint, join(n.WireGuardIPs, ","), join(n.PodPrefixes, ","), agent, since(n.Handshake, at), n.Tunnel})
	}
	return t
}

// LocationTable shows the locations.
func (v View) LocationTable() Table {
	t := Table{Header: []string{"LOCATION", "NODES", "GATEWAY", "WHY"}}
	for _, l := range v.Locations {
		t.Rows = append(t.Rows, []string{l.Name, fmt.Sprint(l.Nodes), l.Gateway, l.Why})
	}
	return t
}

// LinkTable shows the links.
func (v View) LinkTable(at time.Time) Table {
	t := Table{Header: []string{"NODE", "TO", "ENDPOINT", "HANDSHAKE", "RECEIVED", "SENT", "TUNNEL"}}
	for _, l := range v.Links {
		t.Rows = append(t.Rows, []string{l.Node, l.To, l.Endpoint, since(l.Handshake, at), Bytes(l.Received), Bytes(l.Sent), l.Tunnel})
	}
	return t
}

// PeerTable shows the Peers.
func (v View) PeerTable(at time.Time) Table {
	t := Table{Header: []string{"PEER", "ALLOWED IPS", "ENDPOINT", "GATEWAY", "HANDSHAKE", "RECEIVED", "SENT", "EXPIRES"}}
	for _, p := range v.Peers {
		expires := ""
		if p.ExpiresAt != nil {
			expires = "in " + Age(p.ExpiresAt.Sub(at))
		}
		t.Rows = append(t.Rows, []string{p.Name, join(p.AllowedIPs, ","), p.Endpoint, p.Gateway, since(p.Handshake, at), Bytes(p.Received), Bytes(p.Sent), expires})
	}
	return t
}

// Text is everything, for people.
func (v View) Text(at time.Time) string {
	var b strings.Builder
	section := func(t Table) {
		if len(t.Rows) > 0 {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(t.String())
		}
	}
	section(v.NodeTable(at))
	section(v.LocationTable())
	section(v.LinkTable(at))
	section(v.PeerTable(at))
	line := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\n%s\n", title)
			for _, l := range lines {
				fmt.Fprintf(&b, "  %s\n", oneLine(l))
			}
		}
	}
	var waiting, silent []string
	for _, n := range v.Nodes {
		for _, w := range n.Waiting {
			waiting = append(waiting, n.Name+": "+w)
		}
	}
	for _, s := range v.Silent {
		silent = append(silent, s.Node+": "+s.Why)
	}
	line("WAITING", waiting)
	line("WARNINGS", texts(v.Warnings))
	line("DID NOT ANSWER", silent)
	return b.String()
}

func since(t *time.Time, at time.Time) string {
	if t == nil {
		return ""
	}
	return Ago(at.Sub(*t))
}

// Ago is a time that has passed, for people.
func Ago(d time.Duration) string { return Age(d) + " ago" }

// Age is a span of time in one or two units.
func Age(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Bytes is an amount of data in powers of 1024.
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < 4 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[unit])
}
