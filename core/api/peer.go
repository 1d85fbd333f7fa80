package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Peer is a WireGuard party outside the cluster: a laptop, a server, another
// cluster.
type Peer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PeerSpec `json:"spec"`
	// Status is written by one gateway, on transitions only.
	Status *PeerStatus `json:"status,omitempty"`
}

// PeerSpec says who the Peer is and what is reached through it.
//
// +schema {x-kubernetes-validations: [{rule: "!(has(self.presharedKeySecretRef) && has(self.presharedKey) && size(self.presharedKey) > 0)", fieldPath: .presharedKey, message: "give the preshared key once: here, or by presharedKeySecretRef"}, {rule: "!(has(self.allowedDestinations) && has(self.defaultRoute) && self.defaultRoute)", fieldPath: .allowedDestinations, message: "what comes in by a default route may be from anywhere and cannot be limited"}, {rule: "(has(self.defaultRoute) && self.defaultRoute) || self.allowedIPs.all(p, !p.endsWith('/0'))", fieldPath: .allowedIPs, message: "0.0.0.0/0 and ::/0 would send all traffic of the nodes to this Peer; name the prefixes that are behind it, or set defaultRoute: true if that is meant"}]}
type PeerSpec struct {
	// AllowedDestinations limits what the Peer may begin to speak to, as it
	// addresses it: pods, nodes, and Services by their cluster IPs. Absent:
	// everything. Answers to what others begin always pass.
	//
	// +schema {minItems: 1, maxItems: 1024}
	AllowedDestinations []Destination `json:"allowedDestinations,omitempty"`
	// AllowedIPs are the prefixes behind the Peer, such as 10.5.0.1/32; at
	// least one, and none that the cluster or an older Peer uses. Host bits are
	// cleared.
	//
	// +schema {minItems: 1, maxItems: 4096, items: {maxLength: 64, x-kubernetes-validations: [{rule: "isCIDR(self)", message: "want an address with its prefix length; 10.5.0.1/32 is one address"}]}}
	AllowedIPs []string `json:"allowedIPs"`
	// DefaultRoute lets allowedIPs hold 0.0.0.0/0 or ::/0: what the cluster's
	// nodes and pods send to nobody else then leaves through this Peer.
	DefaultRoute bool `json:"defaultRoute,omitempty"`
	// Endpoint is where to reach the Peer; without it, the Peer speaks first.
	Endpoint *PeerEndpoint `json:"endpoint,omitempty"`
	// ExpiresAt ends the Peer's access by itself, such as 2027-01-31T18:00:00Z.
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// PersistentKeepalive is in seconds; 0 is off.
	//
	// +schema {minimum: 0, maximum: 65535}
	PersistentKeepalive int `json:"persistentKeepalive,omitempty"`
	// PresharedKey is an optional WireGuard preshared key. Everybody who may read
	// Peers reads it here; presharedKeySecretRef keeps it in a Secret.
	//
	// +schema {maxLength: 1024, x-kubernetes-validations: [{rule: "size(self) == 0 || self.matches('^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$')", message: "want a WireGuard preshared key: 44 characters of base64, as wg genpsk prints it"}]}
	PresharedKey Secret `json:"presharedKey,omitempty"`
	// PresharedKeySecretRef names the entry of a Secret, in the namespace of
	// the agents, that holds the preshared key.
	PresharedKeySecretRef *SecretKeyRef `json:"presharedKeySecretRef,omitempty"`
	// PublicKey is the Peer's WireGuard public key.
	//
	// +schema {maxLength: 1024, x-kubernetes-validations: [{rule: "self.matches('^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$') && self != 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='", message: "want a WireGuard public key: 44 characters of base64, as wg pubkey prints it"}]}
	PublicKey string `json:"publicKey"`
}

// Destination is something that a Peer may speak to: a prefix; or a Service, by its
// cluster IPs (a headless one by the addresses behind it); or all that is in a
// namespace, its pods and the cluster IPs of its Services.
//
// +schema {x-kubernetes-validations: [{rule: "has(self.prefix) != has(self.namespace)", message: "want a prefix, or a namespace with or without a service in it"}, {rule: "!has(self.service) || has(self.namespace)", fieldPath: .service, message: "a Service is in a namespace: say which"}]}
type Destination struct {
	// Namespace that holds the Service; without one, all pods and Services in it.
	//
	// +schema {maxLength: 63, x-kubernetes-validations: [{rule: "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", message: "want the name of a namespace"}]}
	Namespace string `json:"namespace,omitempty"`
	// Prefix holds the addresses, such as 10.96.0.10/32; an address alone means itself.
	//
	// +schema {maxLength: 64, x-kubernetes-validations: [{rule: "isCIDR(self) || isIP(self)", message: "want an address or a prefix, such as 10.96.0.10 or 10.244.0.0/16"}]}
	Prefix string `json:"prefix,omitempty"`
	// Service of that name in the namespace.
	//
	// +schema {maxLength: 63, x-kubernetes-validations: [{rule: "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", message: "want the name of a Service"}]}
	Service string `json:"service,omitempty"`
}

// DefaultSecret is the Secret that agents may read without further ado.
const DefaultSecret = "kilo-preshared-keys"

// SecretKeyRef names one entry of a Secret.
type SecretKeyRef struct {
	// Name of the Secret. Agents may read the default one; another one needs a
	// Role that lets them list and watch it.
	//
	// +schema {default: kilo-preshared-keys, minLength: 1, maxLength: 253}
	Name string `json:"name,omitempty"`
	// Key is the entry in the Secret's data; by default the Peer's name.
	//
	// +schema {maxLength: 253}
	Key string `json:"key,omitempty"`
}

// The types of a Peer's conditions.
const (
	// PeerAccepted: the Peer is understood, and nothing keeps it from being served.
	PeerAccepted = "Accepted"
	// PeerConflict: it would take what is the cluster's or an older Peer's.
	PeerConflict = "Conflict"
	// PeerReady: the gateway that writes the status hears it.
	PeerReady = "Ready"
)

// PeerStatus tells how a Peer fared at its last transition.
type PeerStatus struct {
	// Conditions are Accepted, Conflict and Ready.
	//
	// +schema {x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type]}
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Gateway is the node that wrote this, and that Ready is about.
	Gateway string `json:"gateway,omitempty"`
	// LastHandshake is when that gateway last shook hands with the Peer, as it
	// was at the last transition.
	LastHandshake *metav1.Time `json:"lastHandshake,omitempty"`
}

// PeerEndpoint is where to reach a Peer: "host:port", or
// {"dnsOrIP":{"ip":"203.0.113.5"},"port":51820}, with "dns" for a name in place
// of "ip". Where both are given, ip is used.
//
// +schema {x-kubernetes-preserve-unknown-fields: true, required: [port]}
// +schema {pattern: '^(\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+):[1-9][0-9]{0,4}$'}
// +schema {properties: {dns: {type: string}, ip: {type: string}, port: {type: integer, minimum: 1, maximum: 65535}}}
// +schema {properties: {dnsOrIP: {type: object, properties: {dns: {type: string}, ip: {type: string}}}}}
type PeerEndpoint struct {
	IP, DNS string
	Port    int
}

// UnmarshalJSON reads the string "host:port", Kilo's object, and the same without
// the inner object, as Kilo wrote it before it knew names. It checks the form alone: whether
// an IP is one is ParsePeer's to say.
func (e *PeerEndpoint) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		return e.unmarshalText(text)
	}
	var object struct {
		DNSOrIP struct {
			IP  string `json:"ip"`
			DNS string `json:"dns"`
		} `json:"dnsOrIP"`
		IP   string `json:"ip"`
		DNS  string `json:"dns"`
		Port int    `json:"port"`
	}
	if err := json.Unmarshal(b, &object); err != nil {
		return errors.New(`spec.endpoint: want {"dnsOrIP":{"ip":"203.0.113.5"},"port":51820} or "host:port"`)
	}
	*e = PeerEndpoint{IP: object.DNSOrIP.IP, DNS: object.DNSOrIP.DNS, Port: object.Port}
	if e.IP == "" {
		e.IP = object.IP
	}
	if e.DNS == "" {
		e.DNS = object.DNS
	}
	return nil
}

func (e *PeerEndpoint) unmarshalText(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("spec.endpoint: %.80q is not host:port", text)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("spec.endpoint: port %.20q is not a number", port)
	}
	*e = PeerEndpoint{Port: n}
	if _, err := netip.ParseAddr(host); err == nil {
		e.IP = host
	} else {
		e.DNS = host
	}
	return nil
}

// String returns host:port, as people type it.
func (e PeerEndpoint) String() string {
	return net.JoinHostPort(cmp.Or(e.IP, e.DNS), strconv.Itoa(e.Port))
}

// MarshalJSON writes Kilo's form.
func (e PeerEndpoint) MarshalJSON() ([]byte, error) {
	type dnsOrIP struct {
		DNS string `json:"dns,omitempty"`
		IP  string `json:"ip,omitempty"`
	}
	return json.Marshal(struct {
		DNSOrIP dnsOrIP `json:"dnsOrIP"`
		Port    int     `json:"port"`
	}{dnsOrIP{DNS: e.DNS, IP: e.IP}, e.Port})
}

// Secret is a string that no way of printing shows. In JSON it is itself,
// because that is how the API server is told; convert it to string to use it.
type Secret string

// Format keeps every verb from printing the secret.
func (s Secret) Format(f fmt.State, _ rune) {
	if s == "" {
		_, _ = f.Write([]byte("none"))
		return
	}
	_, _ = f.Write([]byte("(secret)"))
}

// LogValue keeps it out of logs in JSON.
func (s Secret) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }

// LogValue keeps the preshared key, which JSON would show, out of logs.
func (p Peer) LogValue() slog.Value { return slog.StringValue(p.Name) }

// LogValue keeps the preshared key, which JSON would show, out of logs.
func (s PeerSpec) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("%+v", s)) }
