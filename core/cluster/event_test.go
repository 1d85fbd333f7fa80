package cluster

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kilo-overlay/kilo/core/model"
)

func TestEventsAreToldOnce(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := model.Warning{Kind: BadPeer, Object: "peer/laptop", Message: "x"}
	other := model.Warning{Kind: BadPeer, Object: "peer/laptop", Message: "y"}
	e := newEvents()
	for _, step := range []struct {
		name  string
		after time.Duration
		w     model.Warning
		want  bool
	}{
		{"new", 0, w, true},
		{"the next pass", time.Second, w, false},
		{"another message", 0, other, true},
		{"half an hour on", 30 * time.Minute, w, false},
		{"still there after an hour of passes", 50 * time.Minute, w, false},
		{"gone for an hour and back", eventCooldown + time.Second, w, true},
	} {
		at = at.Add(step.after)
		if got := e.news(step.w, at); got != step.want {
			t.Errorf("%s: told %v, want %v", step.name, got, step.want)
		}
	}
	e.forget(w)
	if !e.news(w, at) {
		t.Error("an event that could not be written is not tried again")
	}
	e.news(other, at.Add(3*eventCooldown))
	if len(e.seen) != 1 {
		t.Errorf("%d warnings are remembered for ever", len(e.seen))
	}
}

func TestWhatAnEventSays(t *testing.T) {
	now := time.Unix(1, 0)
	w := model.Warning{Kind: BadAnnotation, Object: "node/w1.example.test", Message: strings.Repeat("ü", 2000)}
	a := makeEvent(w, "node", "w1.example.test", "u1", "e1", now)
	if problems := validation.IsDNS1123Subdomain(a.Name); len(problems) != 0 {
		t.Errorf("name %q: %v", a.Name, problems)
	}
	if len(a.Message) > 1024 || !utf8.ValidString(a.Message) {
		t.Errorf("the message has %d bytes, valid text: %v", len(a.Message), utf8.ValidString(a.Message))
	}
	if a.InvolvedObject.Kind != "Node" || a.InvolvedObject.UID != "u1" || a.Reason != BadAnnotation || a.Namespace != "default" {
		t.Errorf("got %+v", a)
	}
	if b := makeEvent(w, "node", "w1.example.test", "u1", "e2", now.Add(time.Hour)); b.Name != a.Name {
		t.Error("another agent says the same under another name")
	}
	if b := makeEvent(w, "node", "w1.example.test", "u2", "e1", now); b.Name == a.Name {
		t.Error("a new object of that name would not be told")
	}
	if a.Type != corev1.EventTypeWarning {
		t.Errorf("a warning is an event of type %s", a.Type)
	}
	note := w
	note.Note = true
	if e := makeEvent(note, "node", "w1.example.test", "u1", "e1", now); e.Type != corev1.EventTypeNormal {
		t.Errorf("a note is an event of type %s", e.Type)
	}
	p := makeEvent(model.Warning{Kind: BadPeer, Object: "peer/laptop"}, "peer", "laptop", "u", "e1", now)
	if p.InvolvedObject.Kind != "Peer" || p.InvolvedObject.APIVersion != "kilo.squat.ai/v1alpha1" {
		t.Errorf("got %+v", p.InvolvedObject)
	}
}

// One agent of all speaks about a Peer, and each about its own node.
func TestWhoTells(t *testing.T) {
	agents := make(map[string]*Cluster)
	nodes := []model.Node{
		{Name: "a", UID: "a", Spoken: true}, // not ready
		{Name: "b", UID: "b", Ready: true},  // no agent
		{Name: "c", UID: "c", Ready: true, Spoken: true},
		{Name: "d", UID: "d", Ready: true, Spoken: true},
	}
	for _, n := range nodes {
		agents[n.Name] = New(Config{Node: n.Name})
		agents[n.Name].kept.Snapshot.Nodes = nodes
	}
	for name, agent := range agents {
		if got, want := agent.tells("peer", "laptop"), name == "c"; got != want {
			t.Errorf("%s tells of a Peer: %v, want %v", name, got, want)
		}
		if !agent.tells("node", name) || agent.tells("node", "x") || agent.tells("location", name) {
			t.Errorf("%s should tell of itself and of nothing else", name)
		}
	}
}
