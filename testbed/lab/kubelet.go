package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// A kubelet's own periods.
const (
	leasePeriod   = 10 * time.Second
	leaseDuration = 40 * time.Second
	statusPeriod  = 5 * time.Minute
)

// startKubelets starts the process that stands in for all kubelets.
func (l *Lab) startKubelets(ctx context.Context) error {
	_, err := process{
		group: l.group("kubelets", "kubelets"),
		argv:  []string{l.path("bin", "kilolab"), "kubelets", "--name", l.Name},
		env:   []string{"KILO_LAB_DIR=" + filepath.Dir(l.dir)},
		log:   l.logFile("kubelets", "kubelets"),
	}.start(ctx)
	return err
}

// Kubelets stands in for the kubelets of a lab until ctx ends: for every node
// that is powered on it renews the Lease, keeps the Node ready and the Pods
// too. It speaks to the API server from the node's own network, so a node that
// is cut off falls silent as it would in life.
func Kubelets(ctx context.Context, name string) error {
	l, _, err := open(name)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	running := map[string]context.CancelFunc{}
	// Nodes come and go with the lab's record.
	for {
		if fresh, _, err := open(name); err == nil {
			l = fresh
		}
		known := map[string]bool{}
		for _, n := range l.Nodes() {
			// One that was given other addresses reports those from then on.
			key := fmt.Sprint(n.Name, n.Addr, n.Public)
			known[key] = true
			if running[key] == nil {
				ctx, cancel := context.WithCancel(ctx)
				running[key] = cancel
				go kubelet(ctx, n, log.With("node", n.Name))
			}
		}
		for key, cancel := range running {
			if !known[key] {
				cancel()
				delete(running, key)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// kubelet is one node's.
func kubelet(ctx context.Context, n *Machine, log *slog.Logger) {
	config, err := n.lab.restConfigAt(&n.Place, "kubelet")
	if err != nil {
		log.Error("no way to the API server", "error", err)
		return
	}
	// A connection that a partition has cut must not be waited for.
	config.Timeout = leasePeriod / 2
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Error("no way to the API server", "error", err)
		return
	}
	well := true
	var reported time.Time
	for {
		if n.Alive() {
			err := renew(ctx, client, n)
			if err == nil {
				err = keepReady(ctx, client, n, &reported)
			}
			if (err == nil) != well {
				well = err == nil
				log.Info("reaches the API server", "well", well, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(leasePeriod):
		}
	}
}

func renew(ctx context.Context, client kubernetes.Interface, n *Machine) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NewMicroTime(time.Now())
	seconds := int32(leaseDuration.Seconds())
	patch, err := json.Marshal(map[string]any{"spec": coordinationv1.LeaseSpec{HolderIdentity: &n.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}})
	if err != nil {
		return err
	}
	_, err = leases.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
	}
	return err
}

// keepReady repeats the node's status every few minutes, and at once when
// somebody (the node lifecycle controller) has called it not ready.
func keepReady(ctx context.Context, client kubernetes.Interface, n *Machine, reported *time.Time) error {
	node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // not registered: by the scenario's will
	}
	if err != nil {
		return err
	}
	if ready(node) && time.Since(*reported) < statusPeriod {
		return nil
	}
	if err := patchNodeStatus(ctx, client, n, node, time.Now()); err != nil {
		return err
	}
	*reported = time.Now()

	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String()})
	if err != nil {
		return err
	}
	var problems []error
	for _, pod := range pods.Items {
		if pod.Status.PodIP != "" {
			problems = append(problems, patchPodStatus(ctx, client, &pod, n, pod.Status.PodIP))
		}
	}
	return errors.Join(problems...)
}

// patchNodeStatus writes what a healthy kubelet reports; node is what stands there.
func patchNodeStatus(ctx context.Context, client kubernetes.Interface, n *Machine, node *corev1.Node, now time.Time) error {
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.Addr.String()},
		{Type: corev1.NodeHostName, Address: n.Name},
	}
	if n.Public.IsValid() {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: n.Public.String()})
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("4Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	at := metav1.NewTime(now)
	condition := func(t corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		c := corev1.NodeCondition{Type: t, Status: status, Reason: reason, LastHeartbeatTime: at, LastTransitionTime: at}
		for _, was := range node.Status.Conditions {
			if was.Type == t && was.Status == status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
		return c
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"addresses":   addresses,
		"capacity":    room,
		"allocatable": room,
		"nodeInfo":    corev1.NodeSystemInfo{KubeletVersion: "kilolab", OperatingSystem: "linux", Architecture: "amd64", OSImage: "namespace"},
		"conditions": []corev1.NodeCondition{
			condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
		},
	}})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("node %s: report its status: %w", n.Name, err)
	}
	return nil
}

// patchPodStatus writes that a pod runs, under this address.
func patchPodStatus(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, n *Machine, podIP string) error {
	now := metav1.Now()
	var conditions []corev1.PodCondition
	for _, t := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		conditions = append(conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase":      corev1.PodRunning,
		"podIP":      podIP,
		"podIPs":     []corev1.PodIP{{IP: podIP}},
		"hostIP":     n.Addr.String(),
		"startTime":  now,
		"conditions": conditions,
		"containerStatuses": []corev1.ContainerStatus{{
			Name: "echo", Image: "kilolab", Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}})
	if err != nil {
		return err
	}
	// A plain merge: a pod that runs again has its new address and no other.
	if _, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("pod %s: report its status: %w", pod.Name, err)
	}
	return nil
}
