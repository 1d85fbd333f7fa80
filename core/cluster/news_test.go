package cluster

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
)

// What a kubelet repeats every few minutes is no news, neither of the own Node
// nor of others; what it reports for the first time is.
func TestWhatIsNewsOfANode(t *testing.T) {
	began := time.Now()
	node := func(name string, change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: "5", Annotations: map[string]string{"example.com/note": "a"}}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeDiskPressure, api.MeshCondition} {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue,
				LastHeartbeatTime: metav1.NewTime(began), LastTransitionTime: metav1.NewTime(began)})
		}
		if change != nil {
			change(n)
		}
		return slim(n, "topology.kubernetes.io/region", "e1")
	}
	for name, c := range map[string]struct {
		change       func(*corev1.Node)
		own, another bool // news of it
	}{
		"the same in another version": {func(n *corev1.Node) { n.ResourceVersion = "6" }, false, false},
		"a heartbeat": {func(n *corev1.Node) {
			for i := range n.Status.Conditions {
				n.Status.Conditions[i].LastHeartbeatTime = metav1.NewTime(began.Add(time.Minute))
			}
		}, false, false},
		"ready for another reason, and since another time": {func(n *corev1.Node) {
			n.Status.Conditions[0].Reason, n.Status.Conditions[0].Message = "KubeletReady", "kubelet is posting ready status"
			n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(began.Add(time.Minute))
		}, false, false},
		"images, and another condition": {func(n *corev1.Node) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"pause"}}}
			n.Status.Conditions[1].Status = corev1.ConditionFalse
		}, false, false},
		"not ready":                 {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, true, true},
		"another address":           {func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.0.0.2" }, true, true},
		"an annotation of others":   {func(n *corev1.Node) { n.Annotations["example.com/note"] = "b" }, true, false},
		"the condition of our own":  {func(n *corev1.Node) { n.Status.Conditions[2].Status = corev1.ConditionFalse }, true, false},
		"an annotation of our name": {func(n *corev1.Node) { n.Annotations[api.Location] = "west" }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for node1, want := range map[string]bool{"e1": c.own, "e2": c.another} {
				k := New(Config{Node: "e1"})
				k.nodeChanged(node(node1, nil), true)
				<-k.Changed()
				k.nodeChanged(node(node1, c.change), false)
				select {
				case <-k.Changed():
					if !want {
						t.Errorf("of node %s it wakes the agent of e1", node1)
					}
				default:
					if want {
						t.Errorf("of node %s it does not wake the agent of e1", node1)
					}
				}
			}
		})
	}
}
