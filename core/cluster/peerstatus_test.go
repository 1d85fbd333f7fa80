package cluster

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
)

// A Peer's life: what is said at each turn, and that nothing is said between.
func TestPeerStatusIsWrittenOnTransitions(t *testing.T) {
	noon := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	var have *api.PeerStatus
	for _, turn := range []struct {
		what          string
		now           int // minutes past noon
		verdict       peerVerdict
		news          bool
		accepted      metav1.ConditionStatus
		conflict      metav1.ConditionStatus
		ready         metav1.ConditionStatus
		reason        string // of Ready
		sinceAccepted int
	}{
		{"made, with an address of a pod", 0, peerVerdict{generation: 1, reason: PeerTakesCluster, message: "spec.allowedIPs: …"}, true, "False", "True", "False", "NotAccepted", 0},
		{"nothing", 1, peerVerdict{generation: 1, reason: PeerTakesCluster, message: "the same, said in other words"}, false, "False", "True", "False", "NotAccepted", 0},
		{"mended", 2, peerVerdict{generation: 2}, true, "True", "False", "False", "NoHandshake", 2},
		{"heard", 3, peerVerdict{generation: 2, last: at(3)}, true, "True", "False", "True", "Connected", 2},
		{"heard again", 6, peerVerdict{generation: 2, last: at(6)}, false, "True", "False", "True", "Connected", 2},
		{"silent for five minutes", 11, peerVerdict{generation: 2, last: at(6)}, false, "True", "False", "True", "Connected", 2},
		{"silent for long", 17, peerVerdict{generation: 2, last: at(6)}, true, "True", "False", "False", "NoHandshake", 2},
		{"still", 40, peerVerdict{generation: 2, last: at(6)}, false, "True", "False", "False", "NoHandshake", 2},
		{"expired", 60, peerVerdict{generation: 3, reason: PeerExpired, message: "…"}, true, "False", "False", "False", "NotAccepted", 60},
	} {
		turn.verdict.gateway = "e1"
		got, news := peerStatus(have, turn.verdict, at(turn.now))
		if news != turn.news {
			t.Errorf("%s: news %v, want %v", turn.what, news, turn.news)
		}
		if news {
			have = &got
		}
		condition := func(kind string) metav1.Condition {
			if c := meta.FindStatusCondition(have.Conditions, kind); c != nil {
				return *c
			}
			return metav1.Condition{}
		}
		accepted, conflict, ready := condition(api.PeerAccepted), condition(api.PeerConflict), condition(api.PeerReady)
		if accepted.Status != turn.accepted || conflict.Status != turn.conflict || ready.Status != turn.ready || ready.Reason != turn.reason {
			t.Errorf("%s: accepted %s, conflict %s, ready %s (%s)", turn.what, accepted.Status, conflict.Status, ready.Status, ready.Reason)
		}
		if !accepted.LastTransitionTime.Time.Equal(at(turn.sinceAccepted)) {
			t.Errorf("%s: accepted or not since %s", turn.what, accepted.LastTransitionTime)
		}
	}
	if have.Gateway != "e1" || have.LastHandshake == nil || !have.LastHandshake.Time.Equal(at(6)) {
		t.Errorf("gateway %q, last handshake %v", have.Gateway, have.LastHandshake)
	}
}
