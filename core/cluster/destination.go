package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kilo-overlay/kilo/core/model"
)

// NoSuchDestination is the kind of warning about a Service or namespace that a Peer
// may speak to, and whose addresses are not to be had.
const NoSuchDestination = "NoSuchDestination"

// destinationKey is one kind of object in one namespace.
type destinationKey struct{ resource, namespace string }

// The kinds that destinations are made of.
const (
	servicesResource = "services"
	slicesResource   = "endpointslices"
	podsResource     = "pods"
)

// target is what is kept of a Service, an EndpointSlice or a pod.
type target struct {
	addresses []netip.Prefix
	service   string // of an EndpointSlice: whose it is
	headless  bool   // of a Service: its addresses are those behind it
}

// destinationStore watches what Peers may speak to by name, while there are such
// Peers: the Services of the namespaces that they name, and the pods of those of
// which they name the whole, else the EndpointSlices.
type destinationStore struct {
	*onDemand[destinationKey, target]
}

func newDestinationStore(changed func()) *destinationStore {
	return &destinationStore{newOnDemand[destinationKey, target](changed)}
}

// parts are the kinds of objects that a destination is made of.
func parts(d model.NamedDestination) []destinationKey {
	behind := podsResource
	if d.Service != "" {
		behind = slicesResource
	}
	return []destinationKey{{servicesResource, d.Namespace}, {behind, d.Namespace}}
}

// wantFor says which destinations are in use.
func (d *destinationStore) wantFor(peers []model.Peer) {
	used := map[destinationKey]bool{}
	for i := range peers {
		for _, named := range peers[i].Named {
			for _, k := range parts(named) {
				used[k] = true
			}
		}
	}
	d.want(used)
}

// get returns the addresses of a destination. why says what is wrong with it;
// answered, whether all that it is made of has been listed or refused.
func (d *destinationStore) get(named model.NamedDestination) (addresses []netip.Prefix, why string, answered bool) {
	answered = true
	objects := map[string]map[string]target{}
	for _, k := range parts(named) {
		d.look(k, func(all map[string]target, trouble string, spoken bool) {
			answered = answered && spoken
			why = cmp.Or(why, trouble)
			objects[k.resource] = make(map[string]target, len(all))
			for name, t := range all {
				objects[k.resource][name] = t
			}
		})
	}
	addresses, missing := resolveDestination(named, objects)
	return addresses, cmp.Or(why, missing), answered
}

// resolveDestination collects the addresses of a destination from the objects of its
// namespace, by kind and name.
func resolveDestination(named model.NamedDestination, objects map[string]map[string]target) (addresses []netip.Prefix, missing string) {
	if named.Service == "" {
		for _, kind := range []string{servicesResource, podsResource} {
			for _, t := range objects[kind] {
				addresses = append(addresses, t.addresses...)
			}
		}
		return sorted(addresses), ""
	}
	service, there := objects[servicesResource][named.Service]
	if !there {
		return nil, "there is no such Service"
	}
	addresses = append(addresses, service.addresses...)
	if service.headless {
		for _, t := range objects[slicesResource] {
			if t.service == named.Service {
				addresses = append(addresses, t.addresses...)
			}
		}
	} else if len(addresses) == 0 {
		missing = "it has no cluster IP"
	}
	return sorted(addresses), missing
}

// destinationsFor gives Peers the addresses of what they may speak to by name. What
// is not known is not allowed. waiting tells that the API server has not spoken yet;
// meanwhile what an earlier process knew holds, which before tells.
func destinationsFor(s model.Snapshot, get func(model.NamedDestination) ([]netip.Prefix, string, bool), before []model.Peer) (out model.Snapshot, warnings []model.Warning, waiting bool) {
	if !slices.ContainsFunc(s.Peers, func(p model.Peer) bool { return len(p.Named) > 0 }) {
		return s, nil, false
	}
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		p := &s.Peers[i]
		p.Named = slices.Clone(p.Named)
		for n := range p.Named {
			d := &p.Named[n]
			addresses, why, answered := get(*d)
			switch {
			case !answered:
				waiting = true
				addresses = knownBefore(before, *d)
			case why != "":
				warnings = append(warnings, model.Warning{Kind: NoSuchDestination, Object: "peer/" + p.Name, Message: fmt.Sprintf(
					"spec.allowedDestinations: %s: %s; the Peer may not speak to it", d, why)})
			}
			d.Addresses = addresses
		}
	}
	return s, warnings, waiting
}

func knownBefore(before []model.Peer, d model.NamedDestination) []netip.Prefix {
	for i := range before {
		for _, b := range before[i].Named {
			if b.Same(d) {
				return b.Addresses
			}
		}
	}
	return nil
}

// destinationSource watches one kind of object in one namespace.
func destinationSource(c *clients, k destinationKey) *source {
	var client rest.Interface = c.core
	var example runtime.Object
	switch k.resource {
	case servicesResource:
		example = &corev1.Service{}
	case podsResource:
		example = &corev1.Pod{}
	case slicesResource:
		client, example = c.discovery, &discoveryv1.EndpointSlice{}
	}
	lw := cache.NewListWatchFromClient(client, k.resource, k.namespace, fields.Everything())
	return &source{
		name: k.resource + " in namespace " + k.namespace,
		needs: "a Peer's spec.allowedDestinations needs them: let the agents list and watch them, as manifests/rbac.yaml does, " +
			"or name prefixes instead",
		forbidden: true,
		example:   example,
		list:      lw.ListWithContextFunc,
		watch:     lw.WatchFuncWithContext,
		slim:      slimTarget,
	}
}

// slimTarget leaves of an object what readTarget reads.
func slimTarget(object any) (any, error) {
	slimMeta := func(m metav1.ObjectMeta) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels}
	}
	switch o := object.(type) {
	case *corev1.Service:
		return &corev1.Service{ObjectMeta: slimMeta(o.ObjectMeta), Spec: corev1.ServiceSpec{ClusterIP: o.Spec.ClusterIP, ClusterIPs: o.Spec.ClusterIPs}}, nil
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: slimMeta(o.ObjectMeta), Spec: corev1.PodSpec{HostNetwork: o.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}, nil
	case *discoveryv1.EndpointSlice:
		o.ManagedFields = nil
		return o, nil
	}
	return object, nil
}

// readTarget cuts an object down to its addresses. A pod on its node's network has
// the node's addresses, and one that has ended none: another may have them by now.
func readTarget(object any) (name string, t target, ok bool) {
	var texts []string
	switch o := object.(type) {
	case *corev1.Service:
		name, ok = o.Name, true
		t.headless = o.Spec.ClusterIP == corev1.ClusterIPNone
		texts = o.Spec.ClusterIPs
	case *corev1.Pod:
		name, ok = o.Name, true
		if !o.Spec.HostNetwork && o.Status.Phase != corev1.PodSucceeded && o.Status.Phase != corev1.PodFailed {
			for _, ip := range o.Status.PodIPs {
				texts = append(texts, ip.IP)
			}
		}
	case *discoveryv1.EndpointSlice:
		name, ok = o.Name, true
		t.service = o.Labels[discoveryv1.LabelServiceName]
		for _, e := range o.Endpoints {
			texts = append(texts, e.Addresses...)
		}
	}
	for _, text := range texts {
		// "None", and the names of an EndpointSlice of names, are no addresses.
		if a, err := netip.ParseAddr(text); err == nil {
			t.addresses = append(t.addresses, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		}
	}
	t.addresses = sorted(t.addresses)
	return name, t, ok
}

// readDestinations returns a reader for tools, which lists each kind once.
func readDestinations(ctx context.Context, c *clients) func(model.NamedDestination) ([]netip.Prefix, string, bool) {
	read := map[destinationKey]map[string]target{}
	failed := map[destinationKey]error{}
	return func(named model.NamedDestination) (addresses []netip.Prefix, why string, answered bool) {
		objects := map[string]map[string]target{}
		for _, k := range parts(named) {
			if _, known := read[k]; !known {
				read[k], failed[k] = listTargets(ctx, destinationSource(c, k))
			}
			if failed[k] != nil {
				why = cmp.Or(why, failed[k].Error())
			}
			objects[k.resource] = read[k]
		}
		addresses, missing := resolveDestination(named, objects)
		return addresses, cmp.Or(why, missing), true
	}
}

func listTargets(ctx context.Context, s *source) (map[string]target, error) {
	out := map[string]target{}
	list, err := s.list(ctx, metav1.ListOptions{})
	if err != nil {
		return out, err
	}
	add := func(object any) {
		if name, t, ok := readTarget(object); ok {
			out[name] = t
		}
	}
	switch l := list.(type) {
	case *corev1.ServiceList:
		for i := range l.Items {
			add(&l.Items[i])
		}
	case *corev1.PodList:
		for i := range l.Items {
			add(&l.Items[i])
		}
	case *discoveryv1.EndpointSliceList:
		for i := range l.Items {
			add(&l.Items[i])
		}
	}
	return out, nil
}
