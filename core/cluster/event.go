package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

const (
	// eventCooldown is how long a warning must have been gone before it is news
	// again: as long as API servers keep Events.
	eventCooldown = time.Hour
	eventQueue    = 64
	// eventMessageMost is what the API server takes.
	eventMessageMost = 1024
)

// Event tells the owner of an object about a warning by a Kubernetes Event on
// it. It does not wait and may be called on every pass: one kind, object and
// message is told once, and again only after it has been gone for an hour. A
// node is told by its own agent, a Peer by one agent of all.
func (c *Cluster) Event(ctx context.Context, w model.Warning) {
	kind, name, _ := strings.Cut(w.Object, "/")
	if ctx.Err() != nil || !c.tells(kind, name) || !c.events.news(w, time.Now()) {
		return
	}
	event := makeEvent(w, kind, name, c.uidOf(kind, name), c.config.Node, time.Now())
	select {
	case c.events.queue <- queued{w, event}:
	default: // a flood; the next call tries again
		c.events.forget(w)
	}
}

// tells decides which agent speaks about an object, so that a thousand do not
// say the same: about a node its own, about a Peer the first ready one.
func (c *Cluster) tells(kind, name string) bool {
	if kind == "node" {
		return name == c.config.Node
	}
	if kind != "peer" {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.look().snapshot.Nodes {
		if n.Spoken && n.Ready {
			return n.Name == c.config.Node
		}
	}
	return true
}

func (c *Cluster) uidOf(kind, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == "peer" {
		return c.peers[name].uid
	}
	return c.nodes[name].node.UID
}

// makeEvent writes a warning as an Event. Its name comes of what it says, so
// that a second agent or a restarted one finds it there.
func makeEvent(w model.Warning, kind, name, uid, node string, now time.Time) *corev1.Event {
	object := corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(uid)}
	if kind == "peer" {
		object.Kind, object.APIVersion = api.Kind, api.Group+"/"+api.Version
	}
	sum := sha256.Sum256([]byte(w.Kind + "\x00" + w.Object + "\x00" + w.Message + "\x00" + uid))
	message := w.Message
	if len(message) > eventMessageMost {
		message = strings.ToValidUTF8(message[:eventMessageMost-len("…")], "") + "…"
	}
	severity := corev1.EventTypeWarning
	if w.Note {
		severity = corev1.EventTypeNormal
	}
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject:      object,
		Type:                severity,
		Reason:              w.Kind,
		Message:             message,
		Source:              corev1.EventSource{Component: "kilo", Host: node},
		ReportingController: api.Group + "/kg",
		ReportingInstance:   node,
		FirstTimestamp:      at,
		LastTimestamp:       at,
		Count:               1,
	}
}

// events remembers what was told, and tells it.
type events struct {
	queue chan queued

	mu   sync.Mutex
	seen map[model.Warning]time.Time // when a warning was last handed in
}

type queued struct {
	warning model.Warning
	event   *corev1.Event
}

func newEvents() *events {
	return &events{queue: make(chan queued, eventQueue), seen: make(map[model.Warning]time.Time)}
}

// news tells whether a warning was not handed in for a while.
func (e *events) news(w model.Warning, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, seen := e.seen[w]
	for old, at := range e.seen {
		if now.Sub(at) > eventCooldown {
			delete(e.seen, old)
		}
	}
	e.seen[w] = now
	return !seen || now.Sub(last) > eventCooldown
}

func (e *events) forget(w model.Warning) {
	e.mu.Lock()
	delete(e.seen, w)
	e.mu.Unlock()
}

// run writes Events until ctx ends. One that cannot be written is tried again
// when its warning is handed in again, unless the API server refuses it.
func (e *events) run(ctx context.Context, c *clients, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-e.queue:
			err := postEvent(ctx, c, q.event)
			if err == nil || apierrors.IsAlreadyExists(err) {
				continue
			}
			log.Debug("cannot write an event", "warning", q.warning.String(), "error", err)
			if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				e.forget(q.warning)
			}
		}
	}
}

func postEvent(ctx context.Context, c *clients, event *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return c.core.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
}
