package render

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/report"
)

// well is a mesh whose every agent answers and fares well.
func well() (model.Snapshot, map[string]*report.Status) {
	at := noon.Add(-time.Minute)
	status := func(node, role, other string) *report.Status {
		st := &report.Status{Node: node, Role: role, Ready: true, Adapter: report.Adapter{PodMTU: 1370, BestPodMTU: 1370}}
		if other != "" {
			st.Peers = []report.Peer{{Name: "node/" + other, Endpoint: "192.0.2.1:51820", LastHandshake: &at, SentBytes: 1000}}
		}
		return st
	}
	return fixture(), map[string]*report.Status{"e1": status("e1", "gateway", "w1"), "e2": status("e2", "member", ""), "w1": status("w1", "gateway", "e1")}
}

func TestNothingIsFoundInACleanMesh(t *testing.T) {
	s, live := well()
	if got := Findings(s, nil, live, nil, noon); len(got) > 0 {
		t.Errorf("found %s", FindingText(got))
	}
}

// One thing goes wrong at a time; it is found where it is, and nothing else is.
func TestFindings(t *testing.T) {
	for _, c := range []struct {
		what, where, says string
		also              []string // what follows from it
		wrong             func(s *model.Snapshot, live map[string]*report.Status) (silent map[string]string)
	}{
		{"NoAgent", "node/e2", "no agent has published", nil, func(s *model.Snapshot, live map[string]*report.Status) map[string]string {
			s.Nodes[1].Spoken, s.Nodes[1].Key = false, model.Key{}
			delete(live, "e2")
			return nil
		}},
		{"NoGateway", "location/west", "no node of it can serve", []string{"NoAgent"}, func(s *model.Snapshot, live map[string]*report.Status) map[string]string {
			silent(s)
			live["e1"].Peers = nil
			delete(live, "w1")
			return nil
		}},
		{"NodeNotReady", "node/e2", "not ready", nil, func(s *model.Snapshot, _ map[string]*report.Status) map[string]string {
			s.Nodes[1].Ready = false
			return nil
		}},
		{"AgentSilent", "node/e2", "connection refused", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			delete(live, "e2")
			return map[string]string{"e2": "connection refused"}
		}},
		{"AgentWaits", "node/e2", "this node's key is that of node e1", nil, func(s *model.Snapshot, live map[string]*report.Status) map[string]string {
			s.Nodes[1].Spoken, s.Nodes[1].Key = false, model.Key{} // it has an agent, which says why
			live["e2"].Waiting = []string{"this node's key is that of node e1"}
			return nil
		}},
		{"AgentWaits", "node/e2", "no subnet.env", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			live["e2"].Waiting = []string{"the host CNI is not known: no subnet.env"}
			return nil
		}},
		{"RBAC", "node/e2", "patch nodes", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			live["e2"].Waiting = []string{"the API server forbids this agent to patch nodes: apply manifests/rbac.yaml"}
			return nil
		}},
		{"AgentFails", "node/e2", "EPERM", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			live["e2"].Last.Errors = []string{"apply: EPERM"}
			return nil
		}},
		{"PodMTU", "node/e2", "1450", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			live["e2"].Adapter.PodMTU = 1450
			return nil
		}},
		{"DuplicateKey", "node/e2", "e1 and e2", nil, func(s *model.Snapshot, _ map[string]*report.Status) map[string]string {
			s.Nodes[1].Key = s.Nodes[0].Key
			return nil
		}},
		{"DuplicateAddress", "node/w1", "pod prefix 10.244.2.0/25 overlaps the pod prefix 10.244.2.0/24 of node e2", nil, func(s *model.Snapshot, _ map[string]*report.Status) map[string]string {
			s.Nodes[2].PodPrefixes = append(s.Nodes[2].PodPrefixes, netip.MustParsePrefix("10.244.2.0/25"))
			return nil
		}},
		{"OverlapsServices", "node/w1", "10.244.8.0/22", nil, func(s *model.Snapshot, _ map[string]*report.Status) map[string]string {
			s.ServicePrefixes = prefixes("10.244.8.0/22")
			return nil
		}},
		{"EndpointUnresolved", "node/e1", "east.example.com:51820", nil, func(s *model.Snapshot, _ map[string]*report.Status) map[string]string {
			s.Nodes[0].Endpoint = model.Endpoint{Host: "east.example.com", Port: 51820}
			return nil
		}},
		{"NoEndpoint", "location/east", `["east" "west"]`, nil, func(s *model.Snapshot, _ map[string]*report.Status) map[string]string {
			s.Nodes[0].Endpoint, s.Nodes[2].Endpoint = model.Endpoint{}, model.Endpoint{}
			return nil
		}},
		{"NoHandshake", "node/e1", "UDP port is closed there", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			live["e1"].Peers[0].LastHandshake = nil
			return nil
		}},
		{"StaleHandshake", "node/e1", "10m ago", nil, func(s *model.Snapshot, live map[string]*report.Status) map[string]string {
			old := noon.Add(-10 * time.Minute)
			s.Nodes[0].Keepalive, live["e1"].Peers[0].LastHandshake = 25*time.Second, &old
			return nil
		}},
		{"LocationSilent", "location/west", "has no answer", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			dead := false
			live["e1"].Locations = []report.Location{{Name: "west", Live: &dead}}
			return nil
		}},
		{"ForwardDrop", "node/w1", "DOCKER-USER", nil, func(_ *model.Snapshot, live map[string]*report.Status) map[string]string {
			live["w1"].Warnings = []model.Warning{{Kind: "ForwardDrop", Object: "node/w1", Message: "chain DOCKER-USER drops"}}
			return nil
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			s, live := well()
			silent := c.wrong(&s, live)
			got := Findings(s, nil, live, silent, noon)
			i := slices.IndexFunc(got, func(f Finding) bool { return f.What == c.what })
			if i < 0 || got[i].Where != c.where || !strings.Contains(got[i].Why, c.says) || got[i].Do == "" {
				t.Fatalf("want %s at %s, saying %q; found\n%s", c.what, c.where, c.says, FindingText(got))
			}
			for _, f := range got {
				if f.What != c.what && !slices.Contains(c.also, f.What) {
					t.Errorf("found as well:\n%s", FindingText([]Finding{f}))
				}
			}
		})
	}
}
