package cluster

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/model"
)

// Load reads the cluster once, for tools that show and do not watch. It makes
// of it the Snapshot that an agent makes which has just listed everything, but
// for names of endpoints, which it leaves to the caller, and APIServers, which
// it takes as they are. Of c it uses REST, TopologyLabel, WireGuardSubnets,
// ServicePrefixes, APIServers, Namespace and Version. Without ServicePrefixes it takes
// those that the API server tells, if it does.
//
// The error is about Nodes or Peers that could not be listed. A cluster that
// does not know what a Peer is has none.
func Load(ctx context.Context, c Config) (model.Snapshot, []model.Warning, error) {
	s := model.Snapshot{WireGuardSubnets: c.WireGuardSubnets, ServicePrefixes: c.ServicePrefixes, APIServers: c.APIServers}
	clients, err := c.kgctl()
	if err != nil {
		return s, nil, err
	}
	var warnings []model.Warning
	var claims Claims

	var nodes corev1.NodeList
	if err := clients.core.Get().Resource("nodes").Do(ctx).Into(&nodes); err != nil {
		return s, nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		n, more := ParseNode(&nodes.Items[i], c.TopologyLabel)
		s.Nodes = append(s.Nodes, n)
		warnings = append(warnings, more...)
		claims.Observe(n, Listed)
	}

	peers, err := clients.peers.List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return s, nil, fmt.Errorf("list peers.kilo.squat.ai: %w", err)
	}
	if err == nil {
		for i := range peers.Items {
			name := peers.Items[i].GetName()
			object, err := peers.Items[i].MarshalJSON()
			if err != nil {
				return s, nil, fmt.Errorf("read Peer %s: %w", name, err)
			}
			p, bad := decode(name, object)
			if len(bad) == 0 {
				s.Peers = append(s.Peers, p)
			}
			warnings = append(warnings, bad...)
		}
	}
	if len(s.ServicePrefixes) == 0 {
		// Nobody has to be allowed to see them: none is an answer.
		var services networkingv1.ServiceCIDRList
		if clients.networking.Get().Resource("servicecidrs").Do(ctx).Into(&services) == nil {
			for i := range services.Items {
				s.ServicePrefixes = append(s.ServicePrefixes, servicePrefixes(&services.Items[i])...)
			}
			s.ServicePrefixes = sorted(s.ServicePrefixes)
		}
	}
	s.Sort()

	s, more, _ := Expire(s, time.Now())
	warnings = append(warnings, more...)
	s, more, _ = keysFor(s, readSecrets(ctx, clients, cmp.Or(c.Namespace, DefaultNamespace)), nil)
	warnings = append(warnings, more...)
	s, more, _ = destinationsFor(s, readDestinations(ctx, clients), nil)
	warnings = append(warnings, more...)
	s, more = Resolve(claims, s)
	warnings = append(warnings, more...)
	s, more = Admit(s)
	warnings = append(warnings, subnetWarnings("cluster", &s)...)
	return s, append(warnings, more...), nil
}

// readSecrets returns a reader of Secrets that asks for each once.
func readSecrets(ctx context.Context, c *clients, namespace string) func(model.SecretEntry) (model.PresharedKey, string, bool) {
	type answer struct {
		keys map[string]model.PresharedKey
		bad  map[string]error
		err  error
	}
	read := map[string]answer{}
	return func(e model.SecretEntry) (model.PresharedKey, string, bool) {
		a, known := read[e.Secret]
		if !known {
			var s corev1.Secret
			if a.err = c.core.Get().Namespace(namespace).Resource("secrets").Name(e.Secret).Do(ctx).Into(&s); a.err == nil {
				a.keys, a.bad = presharedKeys(&s)
			}
			read[e.Secret] = a
		}
		key, found := a.keys[e.Entry]
		switch {
		case a.err != nil:
			return key, a.err.Error(), true
		case found:
			return key, "", true
		case a.bad[e.Entry] != nil:
			return key, fmt.Sprintf("entry %q: %v", e.Entry, a.bad[e.Entry]), true
		}
		return key, fmt.Sprintf("it has no entry %q", e.Entry), true
	}
}
