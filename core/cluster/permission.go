package cluster

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
)

// Permission is one verb on one resource.
type Permission struct {
	Verb, Group, Resource string
	Namespace             string // "": the whole cluster
	Name                  string // "": all of that kind
	// Optional tells that the mesh runs without it: what is missing then is
	// said where it is missed.
	Optional bool
}

// String returns it as a sentence's part: "list endpointslices.discovery.k8s.io
// in namespace default".
func (p Permission) String() string {
	out := p.Verb + " " + p.Resource
	if p.Group != "" {
		out += "." + p.Group
	}
	if p.Name != "" {
		out += "/" + p.Name
	}
	if p.Namespace != "" {
		out += " in namespace " + p.Namespace
	}
	return out
}

// Permissions lists all that an agent does with the API server. manifests/rbac.yaml
// grants exactly these.
func Permissions() []Permission {
	const defaultNS = metav1.NamespaceDefault
	return []Permission{
		{Verb: "get", Resource: "nodes"},
		{Verb: "list", Resource: "nodes"},
		{Verb: "watch", Resource: "nodes"},
		{Verb: "patch", Resource: "nodes"},
		{Verb: "patch", Resource: "nodes/status"},
		{Verb: "list", Group: api.Group, Resource: api.Resource},
		{Verb: "watch", Group: api.Group, Resource: api.Resource},
		{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: defaultNS},
		{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: defaultNS},
		{Verb: "create", Resource: "events", Namespace: defaultNS},
		{Verb: "patch", Group: api.Group, Resource: api.Resource + "/status", Optional: true},
		{Verb: "list", Resource: "secrets", Name: api.DefaultSecret, Namespace: DefaultNamespace, Optional: true},
		{Verb: "watch", Resource: "secrets", Name: api.DefaultSecret, Namespace: DefaultNamespace, Optional: true},
		{Verb: "list", Resource: "services", Optional: true},
		{Verb: "watch", Resource: "services", Optional: true},
		{Verb: "list", Resource: "pods", Optional: true},
		{Verb: "watch", Resource: "pods", Optional: true},
		{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices", Optional: true},
		{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices", Optional: true},
		{Verb: "get", Group: "cilium.io", Resource: "ciliumnodes", Optional: true},
		{Verb: "watch", Group: "cilium.io", Resource: "ciliumnodes", Optional: true},
		{Verb: "list", Group: "networking.k8s.io", Resource: "servicecidrs", Optional: true},
		{Verb: "watch", Group: "networking.k8s.io", Resource: "servicecidrs", Optional: true},
	}
}

// MissingPermissions asks the API server which of Permissions this process
// lacks, and names those that are not optional. The error is about the asking.
func (c *Cluster) MissingPermissions(ctx context.Context) ([]string, error) {
	clients, err := c.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var missing []string
	for _, p := range Permissions() {
		if p.Optional {
			continue
		}
		review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: p.attributes()}}
		var answer authorizationv1.SelfSubjectAccessReview
		if err := clients.authorization.Post().Resource("selfsubjectaccessreviews").Body(&review).Do(ctx).Into(&answer); err != nil {
			return missing, fmt.Errorf("ask for the permission to %s: %w", p, err)
		}
		if !answer.Status.Allowed {
			missing = append(missing, p.String())
		}
	}
	return missing, nil
}

func (p Permission) attributes() *authorizationv1.ResourceAttributes {
	resource, subresource, _ := strings.Cut(p.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Verb: p.Verb, Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace, Name: p.Name,
	}
}
