package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

// BadPeer is the kind of warning about a Peer that cannot be understood.
const BadPeer = "BadPeer"

// DecodePeer decodes a Peer as the API server stores it. The error names the
// field and never repeats a value, since one of them is a secret.
func DecodePeer(object []byte) (api.Peer, error) {
	var p api.Peer
	err := json.Unmarshal(object, &p)
	var mistyped *json.UnmarshalTypeError
	var untimely *time.ParseError
	switch {
	case errors.As(err, &mistyped):
		return p, fmt.Errorf("%s: want %s, found %s", mistyped.Field, typeName(mistyped), mistyped.Value)
	case err != nil && strings.HasPrefix(err.Error(), "spec.endpoint"):
		return p, err
	case errors.As(err, &untimely):
		return p, errors.New("spec.expiresAt: want a time such as 2027-01-31T18:00:00Z")
	case err != nil:
		return p, errors.New("it is not a Peer in JSON")
	}
	return p, nil
}

func typeName(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "slice":
		return "a list"
	case "int":
		return "a whole number"
	case "struct", "map":
		return "an object"
	}
	return "a " + e.Type.Kind().String()
}

// ParsePeer reads one Peer. A Peer with any bad field is none: half of one
// would be reached in ways that its owner did not mean. The error names every
// bad field, its value unless secret, and what would be right. Whether a Peer
// fits the cluster is Admit's to say.
func ParsePeer(p api.Peer) (model.Peer, error) {
	peer := model.Peer{Name: p.Name, UID: string(p.UID)}
	if !p.CreationTimestamp.IsZero() {
		peer.Seq = p.CreationTimestamp.UnixNano()
	}
	var bad []error
	fail := func(field string, err error) { bad = append(bad, fmt.Errorf("%s: %w", field, err)) }

	var err error
	switch peer.Key, err = model.ParseKey(p.Spec.PublicKey); {
	case err != nil:
		// The value is not repeated: people have pasted private keys here.
		fail("spec.publicKey", err)
	case peer.Key.IsZero():
		fail("spec.publicKey", errors.New("all zeros are nobody's key"))
	}
	if p.Spec.PresharedKey != "" {
		if peer.PresharedKey, err = model.ParsePresharedKey(string(p.Spec.PresharedKey)); err != nil {
			fail("spec.presharedKey", err)
		}
	}
	if ref := p.Spec.PresharedKeySecretRef; ref != nil {
		if p.Spec.PresharedKey != "" {
			fail("spec.presharedKey", errors.New("give the preshared key once: here, or by presharedKeySecretRef"))
		}
		peer.PresharedKeyFrom = model.SecretEntry{Secret: cmp.Or(ref.Name, api.DefaultSecret), Entry: cmp.Or(ref.Key, p.Name)}
	}
	if len(p.Spec.AllowedIPs) == 0 {
		fail("spec.allowedIPs", errors.New("want at least one prefix such as 10.5.0.1/32"))
	}
	for _, text := range p.Spec.AllowedIPs {
		prefix, err := parsePrefix(strings.TrimSpace(text), false)
		if err != nil {
			fail("spec.allowedIPs", err)
			continue
		}
		peer.AllowedIPs = append(peer.AllowedIPs, prefix)
	}
	peer.AllowedIPs = sorted(peer.AllowedIPs)
	peer.DefaultRoute = p.Spec.DefaultRoute
	if p.Spec.ExpiresAt != nil {
		peer.ExpiresAt = p.Spec.ExpiresAt.UTC()
	}
	if p.Spec.AllowedDestinations != nil && len(p.Spec.AllowedDestinations) == 0 {
		fail("spec.allowedDestinations", errors.New("want at least one destination, or no list at all"))
	}
	for _, d := range p.Spec.AllowedDestinations {
		if d.Namespace != "" || d.Service != "" {
			named, err := namedDestination(d)
			if err != nil {
				fail("spec.allowedDestinations", err)
			} else if !slices.ContainsFunc(peer.Named, named.Same) {
				peer.Named = append(peer.Named, named)
			}
			continue
		}
		prefix, err := parsePrefix(strings.TrimSpace(d.Prefix), true)
		if err != nil {
			fail("spec.allowedDestinations", err)
			continue
		}
		peer.Destinations = append(peer.Destinations, prefix)
	}
	peer.Destinations = sorted(peer.Destinations)
	slices.SortFunc(peer.Named, func(a, b model.NamedDestination) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service))
	})
	if peer.DefaultRoute && peer.Limited() {
		fail("spec.allowedDestinations", errors.New("what comes in by a default route may be from anywhere and cannot be limited: take the list or spec.defaultRoute away"))
	}
	if p.Spec.Endpoint != nil {
		if peer.Endpoint, err = peerEndpoint(*p.Spec.Endpoint); err != nil {
			fail("spec.endpoint", err)
		}
	}
	if peer.Keepalive, err = makeKeepalive(p.Spec.PersistentKeepalive); err != nil {
		fail("spec.persistentKeepalive", err)
	}
	if err := few(bad); err != nil {
		return model.Peer{}, fmt.Errorf("%w; the whole Peer is left out until that is corrected", err)
	}
	return peer, nil
}

// namedDestination reads a destination that is no prefix.
func namedDestination(d api.Destination) (model.NamedDestination, error) {
	switch {
	case d.Prefix != "":
		return model.NamedDestination{}, errors.New("want a prefix, or a namespace with or without a service in it, not both")
	case d.Namespace == "":
		return model.NamedDestination{}, fmt.Errorf("service %q is in a namespace: say which", d.Service)
	}
	for _, name := range []string{d.Namespace, d.Service} {
		if name != "" && !objectName.MatchString(name) {
			return model.NamedDestination{}, fmt.Errorf("%q: want a name of at most 63 small letters, digits and dashes", name)
		}
	}
	return model.NamedDestination{Namespace: d.Namespace, Service: d.Service}, nil
}

var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// peerEndpoint prefers the address where both an address and a name are given,
// as Kilo documented. Both must be right.
func peerEndpoint(e api.PeerEndpoint) (model.Endpoint, error) {
	if e.IP == "" && e.DNS == "" {
		return model.Endpoint{}, errors.New("want an ip or a dns name beside the port")
	}
	var byName model.Endpoint
	var err error
	if e.DNS != "" {
		if byName, err = makeEndpoint(e.DNS, e.Port); err != nil {
			return model.Endpoint{}, err
		}
	}
	if e.IP == "" {
		return byName, nil
	}
	if _, err := parseAddr(e.IP); err != nil {
		return model.Endpoint{}, err
	}
	return makeEndpoint(e.IP, e.Port)
}

// decode brings a stored object all the way to a model.Peer, or to the warning
// that takes its place.
func decode(name string, object []byte) (model.Peer, []model.Warning) {
	p, err := DecodePeer(object)
	if err == nil {
		var peer model.Peer
		if peer, err = ParsePeer(p); err == nil {
			return peer, nil
		}
	}
	return model.Peer{}, []model.Warning{{Kind: BadPeer, Object: "peer/" + name, Message: err.Error()}}
}

// decodeStatus reads the status of a stored object; nil where there is none.
func decodeStatus(object []byte) *api.PeerStatus {
	var p struct {
		Status *api.PeerStatus `json:"status"`
	}
	if json.Unmarshal(object, &p) != nil {
		return nil // it is written anew
	}
	return p.Status
}
