package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

// A Peer is heard while its last handshake is younger than heardFor, after which
// WireGuard's session is dead. It is lost only lostAfter: a Peer that speaks now
// and then should not make a transition each time.
const (
	heardFor  = 3 * time.Minute
	lostAfter = 10 * time.Minute
)

// peerVerdict is how one Peer fares.
type peerVerdict struct {
	generation int64
	// reason is why the Peer is not accepted, a warning's kind; "": it is.
	reason, message string
	gateway         string
	last            time.Time // handshake; zero: none
}

// conflicts are the warnings that say that a Peer would take what is not its own.
func conflicts(kind string) bool {
	return kind == PeerTakesCluster || kind == PeerTakesAll || kind == DuplicatePeer
}

// peerStatus returns the status that a verdict makes of the one that stands, and
// whether that is a transition. The time of a transition stays while the
// condition's status does.
func peerStatus(have *api.PeerStatus, v peerVerdict, now time.Time) (api.PeerStatus, bool) {
	var out api.PeerStatus
	if have != nil {
		out = *have
		out.Conditions = slices.Clone(have.Conditions)
	}
	news := false
	set := func(kind string, status bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: v.generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second))}
		if status {
			c.Status = metav1.ConditionTrue
		}
		old := meta.FindStatusCondition(out.Conditions, kind)
		news = news || old == nil || old.Status != c.Status || old.Reason != c.Reason || old.ObservedGeneration != c.ObservedGeneration
		meta.SetStatusCondition(&out.Conditions, c)
	}
	accepted := v.reason == ""
	if accepted {
		set(api.PeerAccepted, true, "Accepted", "every gateway serves this Peer")
	} else {
		set(api.PeerAccepted, false, v.reason, v.message)
	}
	if conflicts(v.reason) {
		set(api.PeerConflict, true, v.reason, v.message)
	} else {
		set(api.PeerConflict, false, "NoConflict", "it takes nothing that is somebody else's")
	}
	wasReady := have != nil && meta.IsStatusConditionTrue(have.Conditions, api.PeerReady)
	age := now.Sub(v.last)
	switch {
	case !accepted:
		set(api.PeerReady, false, "NotAccepted", "the Peer is left out")
	case !v.last.IsZero() && (age <= heardFor || wasReady && age <= lostAfter):
		set(api.PeerReady, true, "Connected", "gateway "+v.gateway+" hears it")
	case v.last.IsZero():
		set(api.PeerReady, false, "NoHandshake", "gateway "+v.gateway+" has not heard it; it is ready to")
	default:
		set(api.PeerReady, false, "NoHandshake", fmt.Sprintf("gateway %s heard it last at %s", v.gateway, v.last.UTC().Format(time.RFC3339)))
	}
	out.Gateway = v.gateway
	if !v.last.IsZero() {
		at := metav1.NewTime(v.last.Truncate(time.Second))
		out.LastHandshake = &at
	}
	return out, news
}

// PeerStatuses tells on every Peer how it fares, where that is a transition. One
// gateway of the cluster calls it, with what it hears.
func (c *Cluster) PeerStatuses(ctx context.Context, h model.Heard) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	var errs []error
	for name, status := range c.peerTransitions(h, time.Now()) {
		if err := c.writePeerStatus(ctx, name, status); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// peerTransitions returns the statuses to write, by name of Peer.
func (c *Cluster) peerTransitions(h model.Heard, now time.Time) map[string]api.PeerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.look()
	if !v.complete {
		return nil
	}
	refused := map[string]model.Warning{}
	for _, w := range v.warnings {
		switch w.Kind {
		case BadPeer, PeerTakesCluster, PeerTakesAll, DuplicatePeer, PeerExpired, NoPresharedKey:
			refused[w.Object] = w
		}
	}
	out := map[string]api.PeerStatus{}
	for _, name := range slices.Sorted(maps.Keys(c.peers)) {
		e := c.peers[name]
		w := refused["peer/"+name]
		verdict := peerVerdict{generation: e.generation, reason: w.Kind, message: w.Message, gateway: h.Gateway, last: h.Last[e.peer.Key]}
		if status, news := peerStatus(e.status, verdict, now); news {
			out[name] = status
		}
	}
	return out
}

func (c *Cluster) writePeerStatus(ctx context.Context, name string, status api.PeerStatus) error {
	clients, err := c.connect()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = clients.peers.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		// The Peer went away; or the definition or the rights are from before
		// there was a status, which the mesh does not need.
		c.log.Debug("a Peer's status was not written", "peer", name, "error", err)
		err = nil
	case err != nil:
		return fmt.Errorf("status of Peer %s: %w", name, err)
	}
	// Until the watch tells: what was written stands.
	c.mu.Lock()
	if e, ok := c.peers[name]; ok {
		e.status = &status
		c.peers[name] = e
	}
	c.mu.Unlock()
	return nil
}
