package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// RESTConfig reaches the API server from this process: connections are made on
// the control plane's host.
func (l *Lab) RESTConfig(user string) (*rest.Config, error) {
	return l.restConfigAt(&l.Machine(l.Spec.controlPlane().Name).Place, user)
}

// restConfigAt reaches the API server from a place.
func (l *Lab) restConfigAt(p *Place, user string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig(user))
	if err != nil {
		return nil, err
	}
	config.Dial = p.Dial
	config.QPS, config.Burst = 200, 200
	config.UserAgent = "kilolab"
	return config, nil
}

// Client is a clientset as the user with that kubeconfig: admin, agent …
func (l *Lab) Client(user string) (*kubernetes.Clientset, error) {
	config, err := l.RESTConfig(user)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// register creates the Node objects one after the other, so that pod prefixes
// come in the order of the spec. There may be gaps: an update during the
// assignment makes the controller take a second prefix and drop the first.
func (l *Lab) register(ctx context.Context) error {
	for _, n := range l.Nodes() {
		if err := n.Register(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Register creates the machine's Node object with a ready status, as a kubelet
// does when it starts, and waits for its pod prefix.
func (m *Machine) Register(ctx context.Context) error {
	client, err := m.lab.Client("kubelet")
	if err != nil {
		return err
	}
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, m.nodeObject(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("node %s: create its object: %w", m.Name, err)
	}
	// Before its status, to keep out of the assignment's way.
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var node *corev1.Node
	var last error
	if poll(wait, 20*time.Millisecond, func() bool {
		node, last = nodes.Get(wait, m.Name, metav1.GetOptions{})
		return last == nil && node.Spec.PodCIDR != ""
	}) != nil {
		return fmt.Errorf("node %s: no pod prefix from the node-ipam controller in 30 s (%v)", m.Name, last)
	}
	return patchNodeStatus(ctx, client, m, node, time.Now())
}

// Unregister deletes the machine's Node, its Lease and its Pods, as an
// administrator and the garbage collector do.
func (m *Machine) Unregister(ctx context.Context) error {
	client, err := m.lab.Client("kubelet")
	if err != nil {
		return err
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	onNode := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.Name).String()}
	gone := func(err error) error {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, onNode)
	if err != nil {
		return err
	}
	if m.lab.Spec.CNI.hasCilium() {
		if err := m.lab.forgetCilium(ctx, m.Name, pods.Items); err != nil {
			return err
		}
	}
	return errors.Join(
		gone(client.CoreV1().Nodes().Delete(ctx, m.Name, now)),
		gone(client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, m.Name, now)),
		client.CoreV1().Pods(cmp.Or(m.spec.PodNamespace, metav1.NamespaceDefault)).DeleteCollection(ctx, now, onNode),
	)
}

func (m *Machine) nodeObject() *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname:   m.Name,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
	}
	if m.Location != "" {
		labels[corev1.LabelTopologyRegion] = m.Location
	}
	if m.spec.ControlPlane {
		labels["node-role.kubernetes.io/control-plane"] = ""
	}
	maps.Copy(labels, m.spec.Labels)
	// A kubelet always leaves this one, and Flannel writes into the map that
	// it takes for granted.
	annotations := map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
	maps.Copy(annotations, m.spec.Annotations)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: labels, Annotations: annotations}}
}

// createPodObject creates a Pod bound to its node; its status is the
// kubelet's, so ours, to set.
func (l *Lab) createPodObject(ctx context.Context, p *Pod) error {
	client, err := l.Client("kubelet")
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", p.Namespace, err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: map[string]string{"app": p.Name}},
		Spec: corev1.PodSpec{
			NodeName:   p.Node,
			Containers: []corev1.Container{{Name: "echo", Image: "kilolab", Ports: []corev1.ContainerPort{{ContainerPort: EchoPort}}}},
		},
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // after a power-off
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", p.Name, err)
	}
	return nil
}

// Expose makes a Service in front of a pod's EchoPort and returns its ClusterIP
// and port. kube-proxy learns of it a moment later.
func (l *Lab) Expose(ctx context.Context, service string, pod *Pod) (netip.AddrPort, error) {
	client, err := l.Client("admin")
	if err != nil {
		return netip.AddrPort{}, err
	}
	made, err := client.CoreV1().Services(pod.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": pod.Name},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(EchoPort)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("service %s: %w", service, err)
	}
	addr, err := netip.ParseAddr(made.Spec.ClusterIP)
	return netip.AddrPortFrom(addr, 80), err
}

// ExposeAddress makes a Service, without a selector, in front of one address and
// port, wherever they are: a process on a node, for one. It returns the ClusterIP
// and its port, 80.
func (l *Lab) ExposeAddress(ctx context.Context, service string, backend netip.AddrPort) (netip.AddrPort, error) {
	client, err := l.Client("admin")
	if err != nil {
		return netip.AddrPort{}, err
	}
	target := int32(backend.Port())
	made, err := client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(target)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("service %s: %w", service, err)
	}
	_, err = client.DiscoveryV1().EndpointSlices(made.Namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{backend.Addr().String()}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(string), Port: &target}},
	}, metav1.CreateOptions{})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("service %s: its endpoint: %w", service, err)
	}
	addr, err := netip.ParseAddr(made.Spec.ClusterIP)
	return netip.AddrPortFrom(addr, 80), err
}

// PodPrefix is the node's, as its object shows it.
func (m *Machine) PodPrefix(ctx context.Context) (netip.Prefix, error) {
	return m.lab.podPrefix(ctx, m)
}

// NodeReady tells whether the API server holds the node for ready.
func (l *Lab) NodeReady(ctx context.Context, name string) (bool, error) {
	client, err := l.Client("admin")
	if err != nil {
		return false, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return ready(node), nil
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Annotate sets annotations of a Node; a nil value removes one.
func (l *Lab) Annotate(ctx context.Context, node string, annotations map[string]*string) error {
	client, err := l.Client("admin")
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
