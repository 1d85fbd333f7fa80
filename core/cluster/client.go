package cluster

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kilo-overlay/kilo/core/api"
)

// writeTimeout bounds one request that is no watch.
const writeTimeout = 15 * time.Second

// clients talk to the few kinds of objects that the mesh knows. Client-go's
// clientset would bring every kind there is into the agent's memory.
type clients struct {
	core          rest.Interface
	discovery     rest.Interface
	networking    rest.Interface
	authorization rest.Interface
	peers         dynamic.ResourceInterface
}

// newClients connects by d; nil: as c says.
func newClients(c *rest.Config, d *dialer, userAgent string) (*clients, error) {
	if c == nil {
		return nil, fmt.Errorf("no way to the API server is configured")
	}
	c = rest.CopyConfig(c)
	if d != nil {
		c.Dial = d.DialContext
	}
	c.UserAgent = userAgent
	c.WarningHandler = rest.NoWarnings{}
	httpClient, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("API client: %w", err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	typed := func(group schema.GroupVersion, path string) rest.Interface {
		var client *rest.RESTClient
		if err == nil {
			client, err = typedClient(c, httpClient, codecs, group, path)
		}
		return client
	}
	out := &clients{
		core:          typed(corev1.SchemeGroupVersion, "/api"),
		discovery:     typed(discoveryv1.SchemeGroupVersion, "/apis"),
		networking:    typed(networkingv1.SchemeGroupVersion, "/apis"),
		authorization: typed(authorizationv1.SchemeGroupVersion, "/apis"),
	}
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	peers, err := dynamic.NewForConfigAndClient(c, httpClient)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	out.peers = peers.Resource(schema.GroupVersionResource{Group: api.Group, Version: api.Version, Resource: api.Resource})
	return out, nil
}

// typedClient speaks protobuf, of which a Node takes a third of what it takes
// in JSON.
func typedClient(c *rest.Config, h *http.Client, codecs runtime.NegotiatedSerializer, group schema.GroupVersion, path string) (*rest.RESTClient, error) {
	c = rest.CopyConfig(c)
	c.GroupVersion = &group
	c.APIPath = path
	c.NegotiatedSerializer = codecs
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return rest.RESTClientForConfigAndClient(c, h)
}

// kgctl connects for a person, without the dialer that an agent needs before the
// cluster network is up.
func (c Config) kgctl() (*clients, error) {
	return newClients(c.REST, nil, "kgctl/"+cmp.Or(c.Version, "unknown"))
}
