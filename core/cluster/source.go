package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kilo-overlay/kilo/core/api"
)

// A source is one kind of object that is watched: listed once, then streamed.
type source struct {
	// name is for people: "nodes".
	name string
	// needs says what a person does where the server refuses or does not know
	// the kind.
	needs string
	// absent tells whether a server that does not know the kind has answered:
	// there are none. forbidden: whether a refusal is an answer too. Either has
	// to last for settle, since an API server that has just started does not
	// know its own rules yet and refuses what it will grant.
	absent, forbidden bool
	// optional tells that a snapshot is complete without a word of this source.
	optional bool
	example  runtime.Object
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	slim     cache.TransformFunc
	changed  func(object any, initial bool)
	deleted  func(object any)
	// report is called when answered or trouble changed.
	report func()
	log    *slog.Logger

	mu       sync.Mutex
	synced   bool
	answered bool
	trouble  string    // "" while the server answers
	since    time.Time // when it began to say so
}

// settle is how long an API server must say that there is nothing to be seen.
const settle = 10 * time.Second

// state tells whether the source has said all it knows at least once, and what
// keeps it from going on, "" for nothing.
func (s *source) state() (answered bool, trouble string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered, s.trouble
}

// run watches until ctx ends. It retries for ever, with growing pauses of up
// to half a minute.
func (s *source) run(ctx context.Context) error {
	// Client-go logs every failed attempt; we tell transitions, in outcome.
	ctx = klog.NewContext(ctx, klog.Logger{})
	informer := cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := s.list(ctx, o)
			s.outcome(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := s.watch(ctx, o)
			s.outcome(err)
			return w, err
		},
	}, s.example, cache.SharedIndexInformerOptions{ObjectDescription: s.name})
	err := errors.Join(
		informer.SetTransform(s.slim),
		informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}),
	)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, initial bool) { s.changed(object, initial) },
		UpdateFunc: func(_, object any) { s.changed(object, false) },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			s.deleted(object)
		},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-handler.HasSyncedChecker().Done():
			s.mu.Lock()
			s.synced, s.answered = true, true
			s.mu.Unlock()
			s.report()
		case <-ctx.Done():
		}
	})
	informer.RunWithContext(ctx)
	wg.Wait()
	return nil
}

// outcome takes note of how a request ended and tells transitions.
func (s *source) outcome(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) {
		return // how a watch is renewed; a list follows at once
	}
	var trouble string
	answers := false
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		trouble, answers = "the API server does not know them; "+s.needs, s.absent
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		trouble, answers = "the API server refuses to show them; "+s.needs, s.forbidden
	default:
		trouble = "the API server does not answer"
	}
	s.mu.Lock()
	before, answered := s.trouble, s.answered
	if before != trouble {
		s.trouble, s.since = trouble, time.Now()
	}
	s.answered = s.synced || s.answered || answers && time.Since(s.since) >= settle
	news := before != trouble || answered != s.answered
	s.mu.Unlock()
	if !news {
		return
	}
	switch {
	case trouble == "":
		s.log.Info("watching", "what", s.name)
	case err != nil && before != trouble:
		s.log.Warn("cannot watch", "what", s.name, "why", trouble, "error", err)
	}
	s.report()
}

// nodeSource watches all Nodes.
func nodeSource(c *clients, topologyLabel, own string) *source {
	lw := cache.NewListWatchFromClient(c.core, "nodes", metav1.NamespaceAll, fields.Everything())
	return &source{
		name:    "nodes",
		needs:   "apply manifests/rbac.yaml",
		example: &corev1.Node{},
		list:    lw.ListWithContextFunc,
		watch:   lw.WatchFuncWithContext,
		slim:    slimNode(topologyLabel, own),
	}
}

// slimNode cuts a Node down to what ParseNode, ParseInputs and Patch read: of
// ten kilobytes most are images and managed fields.
func slimNode(topologyLabel, own string) cache.TransformFunc {
	return func(object any) (any, error) {
		n, ok := object.(*corev1.Node)
		if !ok {
			return object, nil
		}
		return slim(n, topologyLabel, own), nil
	}
}

// slim leaves the local Node all of its annotations: the host CNI's record of
// this node is among them.
func slim(n *corev1.Node, topologyLabel, own string) *corev1.Node {
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:              n.Name,
		UID:               n.UID,
		ResourceVersion:   n.ResourceVersion,
		DeletionTimestamp: n.DeletionTimestamp,
		Annotations:       ours(n.Annotations, ""),
		Labels:            ours(n.Labels, topologyLabel),
	}}
	if n.Name == own {
		out.Annotations = n.Annotations
	}
	out.Spec.PodCIDRs = n.Spec.PodCIDRs
	if len(n.Spec.PodCIDRs) == 0 {
		out.Spec.PodCIDR = n.Spec.PodCIDR
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			out.Status.Addresses = append(out.Status.Addresses, a)
		}
	}
	for _, c := range n.Status.Conditions {
		switch c.Type {
		case corev1.NodeReady:
			// Why and since when is the kubelet's business, and no news here.
			c = corev1.NodeCondition{Type: c.Type, Status: c.Status}
		case api.MeshCondition:
			c.LastHeartbeatTime = metav1.Time{}
		default:
			continue
		}
		out.Status.Conditions = append(out.Status.Conditions, c)
	}
	return out
}

// ours keeps the names that begin as ours do, and one more.
func ours(all map[string]string, also string) map[string]string {
	var out map[string]string
	for name, value := range all {
		if name != also && !isOurs(name) {
			continue
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[name] = value
	}
	return out
}

func isOurs(name string) bool {
	return len(name) > len(api.Group) && name[:len(api.Group)] == api.Group && name[len(api.Group)] == '/'
}

// peerSource watches Peers, whose definition may come later than the agent.
func peerSource(c *clients) *source {
	return &source{
		name:    api.Resource + "." + api.Group,
		needs:   "apply manifests/crds.yaml and manifests/rbac.yaml",
		absent:  true,
		example: &unstructured.Unstructured{},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.peers.List(ctx, o)
		},
		watch: c.peers.Watch,
		slim: func(object any) (any, error) {
			if u, ok := object.(*unstructured.Unstructured); ok {
				u.SetManagedFields(nil)
				u.SetAnnotations(nil) // kubectl repeats the whole object in one
			}
			return object, nil
		},
	}
}

// sliceSource watches where the API servers are. Agents that may not see that
// do with what they were told.
func sliceSource(c *clients) *source {
	lw := cache.NewFilteredListWatchFromClient(c.discovery, "endpointslices", metav1.NamespaceDefault, func(o *metav1.ListOptions) {
		o.LabelSelector = discoveryv1.LabelServiceName + "=kubernetes"
	})
	return &source{
		name:      "endpointslices of the Service default/kubernetes",
		needs:     "apply manifests/rbac.yaml",
		absent:    true,
		forbidden: true,
		example:   &discoveryv1.EndpointSlice{},
		list:      lw.ListWithContextFunc,
		watch:     lw.WatchFuncWithContext,
		slim: func(object any) (any, error) {
			if s, ok := object.(*discoveryv1.EndpointSlice); ok {
				s.ManagedFields = nil
			}
			return object, nil
		},
	}
}
