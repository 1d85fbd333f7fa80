package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// AgentStatus is what the lab reads of an agent's /status.
type AgentStatus struct {
	Ready        bool     `json:"ready"`
	Location     string   `json:"location"`
	Role         string   `json:"role"` // gateway, member, waiting
	Waiting      []string `json:"waiting"`
	Endpoint     string   `json:"endpoint"`
	WireGuardIPs []string `json:"wireGuardIPs"`
	Tunnel       struct {
		Kind string `json:"kind"` // kernel, userspace
		MTU  int    `json:"mtu"`
	} `json:"tunnel"`
	Adapter struct {
		PodPrefixes []string `json:"podPrefixes"`
	} `json:"adapter"`
	Locations []struct {
		Name    string   `json:"name"`
		Nodes   []string `json:"nodes"`
		Gateway string   `json:"gateway"`
		Epoch   uint64   `json:"epoch"`
	} `json:"locations"`
	Peers []struct {
		Name          string     `json:"name"`
		Endpoint      string     `json:"endpoint"`
		LastHandshake *time.Time `json:"lastHandshake"`
	} `json:"peers"`
	Warnings []json.RawMessage `json:"warnings"`
}

// AgentStatus asks the machine's agent.
func (m *Machine) AgentStatus(ctx context.Context) (AgentStatus, error) {
	var s AgentStatus
	text, err := m.AgentGet(ctx, "/status")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("node %s: /status: %w", m.Name, err)
	}
	return s, nil
}

// Gateway is the node that serves a location, as the machine's agent sees it;
// "" if it sees none.
func (s AgentStatus) Gateway(location string) string {
	for _, l := range s.Locations {
		if l.Name == location {
			return l.Gateway
		}
	}
	return ""
}

// MeshTable is the mesh for people, a line a node. A node whose agent does not
// answer says why.
func (l *Lab) MeshTable(ctx context.Context) string {
	nodes := l.Nodes()
	rows := make([]string, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { rows[i] = n.meshRow(ctx) })
	}
	wg.Wait()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tLOCATION\tROLE\tENDPOINT\tWIREGUARD\tPODS\tHANDSHAKE\tTUNNEL")
	for _, r := range rows {
		fmt.Fprintln(w, r)
	}
	w.Flush()
	return b.String()
}

func (m *Machine) meshRow(ctx context.Context) string {
	cells := func(c ...string) string {
		for i := range c {
			if c[i] == "" {
				c[i] = "-"
			}
		}
		return strings.Join(c, "\t")
	}
	if !m.Alive() {
		return cells(m.Name, m.Location, "powered off", "", "", "", "", "")
	}
	if m.Daemon(agentDaemon) == 0 {
		return cells(m.Name, m.Location, "no agent", "", "", "", "", "")
	}
	s, err := m.AgentStatus(ctx)
	if err != nil {
		return cells(m.Name, m.Location, "no answer", "", "", "", "", "")
	}
	role := s.Role
	if len(s.Waiting) > 0 {
		role += " (" + s.Waiting[0] + ")"
	}
	handshake := ""
	var newest time.Time
	for _, p := range s.Peers {
		if p.LastHandshake != nil && p.LastHandshake.After(newest) {
			newest = *p.LastHandshake
			handshake = time.Since(newest).Round(time.Second).String() + " ago"
		}
	}
	return cells(m.Name, s.Location, role, s.Endpoint, strings.Join(s.WireGuardIPs, ","), strings.Join(s.Adapter.PodPrefixes, ","), handshake, s.Tunnel.Kind)
}

// Describe lists the machines and what runs on each.
func (l *Lab) Describe() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tLOCATION\tLAN\tPUBLIC\tRUNS")
	for _, m := range l.Machines() {
		runs := "powered off"
		if m.Alive() {
			runs = strings.Join(m.Running(), " ")
		}
		public := "-"
		if m.Public.IsValid() {
			public = m.Public.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Name, m.Location, m.Addr, public, runs)
	}
	w.Flush()
	for _, c := range l.cuts {
		fmt.Fprintf(&b, "cut: %s → %s\n", c.From, c.To)
	}
	return b.String()
}
