package cluster

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
)

// ConditionPatch returns the strategic merge patch of a Node's status that
// tells a transition, or nil when status and reason stand there already. The
// transition's time is kept while the status stays. It is pure.
func ConditionPatch(node *corev1.Node, ready bool, reason, message string, now time.Time) []byte {
	want := corev1.NodeCondition{
		Type:               api.MeshCondition,
		Status:             corev1.ConditionFalse,
		Reason:             reason,
		Message:            message,
		LastHeartbeatTime:  metav1.NewTime(now),
		LastTransitionTime: metav1.NewTime(now),
	}
	if ready {
		want.Status = corev1.ConditionTrue
	}
	if have := meshCondition(node); have != nil && have.Status == want.Status {
		if have.Reason == want.Reason {
			return nil
		}
		want.LastTransitionTime = have.LastTransitionTime
	}
	return statusPatch(want)
}

// clearConditionPatch returns the patch that removes the condition, or nil
// when it is not there.
func clearConditionPatch(node *corev1.Node) []byte {
	if meshCondition(node) == nil {
		return nil
	}
	return statusPatch(map[string]string{"type": api.MeshCondition, "$patch": "delete"})
}

func meshCondition(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == api.MeshCondition {
			return c
		}
	}
	return nil
}

func statusPatch(condition any) []byte {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		panic(err) // plain values always have a JSON form
	}
	return body
}
