package api

import (
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
}

// PeerSpec says who the Peer is and what is reached through it.
type PeerSpec struct {
	// AllowedIPs are the prefixes behind the Peer, "10.5.0.1/32"; at least one.
	AllowedIPs []string `json:"allowedIPs"`
	// Endpoint is where to reach it; nil: it speaks first.
	Endpoint *PeerEndpoint `json:"endpoint,omitempty"`
	// PersistentKeepalive is in seconds; 0: off.
	PersistentKeepalive int `json:"persistentKeepalive,omitempty"`
	// PresharedKey is optional; base64, 44 characters.
	PresharedKey Secret `json:"presharedKey,omitempty"`
	// PublicKey is base64, 44 characters.
	PublicKey string `json:"publicKey"`
}

// PeerEndpoint is an address or a name, and a UDP port. Where both IP and DNS
// are given, IP is used.
//
// Three JSON forms are read: Kilo's {"dnsOrIP":{"ip":…,"dns":…},"port":N}, the
// same without the inner object, and the string "host:port". The first is
// written.
type PeerEndpoint struct {
	IP, DNS string
	Port    int
}

// UnmarshalJSON reads any of the three forms. It checks the form alone: whether
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
