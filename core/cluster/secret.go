package cluster

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/kilo-overlay/kilo/core/model"
)

// NoPresharedKey is the kind of warning about a Peer whose preshared key, kept in
// a Secret, is not to be had.
const NoPresharedKey = "NoPresharedKey"

// DefaultNamespace is the agents' namespace where nobody says another.
const DefaultNamespace = "kube-system"

// presharedSecret is what is known of one Secret.
type presharedSecret struct {
	keys map[string]model.PresharedKey
	bad  map[string]error // entries that are there and no keys
}

// secretStore watches the Secrets that Peers name, each by its name: agents may
// see no others.
type secretStore struct {
	*onDemand[string, presharedSecret]
}

func newSecretStore(changed func()) *secretStore {
	return &secretStore{newOnDemand[string, presharedSecret](changed)}
}

// wantFor says which Secrets are in use.
func (d *secretStore) wantFor(peers []model.Peer) {
	used := map[string]bool{}
	for i := range peers {
		if name := peers[i].PresharedKeyFrom.Secret; name != "" {
			used[name] = true
		}
	}
	d.want(used)
}

// get returns the preshared key in an entry. Without one, why says what is
// missing, and answered whether that is the API server's word or it has not
// spoken yet.
func (d *secretStore) get(e model.SecretEntry) (key model.PresharedKey, why string, answered bool) {
	d.look(e.Secret, func(objects map[string]presharedSecret, trouble string, spoken bool) {
		secret, there := objects[e.Secret]
		var found bool
		key, found = secret.keys[e.Entry]
		answered = spoken || found
		switch bad := secret.bad[e.Entry]; {
		case found:
		case trouble != "":
			why = trouble
		case bad != nil:
			why = fmt.Sprintf("entry %q: %v", e.Entry, bad)
		case !there:
			why = "there is no such Secret"
		default:
			why = fmt.Sprintf("it has no entry %q", e.Entry)
		}
	})
	return key, why, answered
}

// readSecret is for onDemand.
func readSecret(object any) (string, presharedSecret, bool) {
	s, ok := object.(*corev1.Secret)
	if !ok {
		return "", presharedSecret{}, false
	}
	keys, bad := presharedKeys(s)
	return s.Name, presharedSecret{keys, bad}, true
}

// presharedKeys reads every entry of a Secret that is a preshared key.
func presharedKeys(s *corev1.Secret) (keys map[string]model.PresharedKey, bad map[string]error) {
	keys, bad = map[string]model.PresharedKey{}, map[string]error{}
	for entry, value := range s.Data {
		key, err := model.ParsePresharedKey(string(trimNewline(value)))
		if err != nil {
			bad[entry] = err
			continue
		}
		keys[entry] = key
	}
	return keys, bad
}

// trimNewline takes off what "wg genpsk | kubectl create secret --from-file"
// leaves behind a key.
func trimNewline(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == '\r') {
		b = b[:len(b)-1]
	}
	return b
}

// secretSource watches one Secret.
func secretSource(c *clients, namespace, name string) *source {
	lw := cache.NewFilteredListWatchFromClient(c.core, "secrets", namespace, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	})
	return &source{
		name:      "secret " + namespace + "/" + name,
		needs:     fmt.Sprintf("let the agents list and watch the Secret %s in namespace %s; manifests/rbac.yaml does so for the default one", name, namespace),
		forbidden: true,
		example:   &corev1.Secret{},
		list:      lw.ListWithContextFunc,
		watch:     lw.WatchFuncWithContext,
		slim: func(object any) (any, error) {
			if s, ok := object.(*corev1.Secret); ok {
				s.ManagedFields, s.Annotations = nil, nil
			}
			return object, nil
		},
	}
}

// keysFor gives Peers the preshared keys that they keep in Secrets. One whose key
// is not to be had is left out: without it, it would be let in by less than its
// owner asked for. waiting tells that this may be so only because the API server
// has not spoken yet. before are the Peers that an earlier process left.
func keysFor(s model.Snapshot, get func(model.SecretEntry) (model.PresharedKey, string, bool), before []model.Peer) (out model.Snapshot, warnings []model.Warning, waiting bool) {
	if !slices.ContainsFunc(s.Peers, func(p model.Peer) bool { return p.PresharedKeyFrom != model.SecretEntry{} }) {
		return s, nil, false
	}
	peers := make([]model.Peer, 0, len(s.Peers))
	for _, p := range s.Peers {
		from := p.PresharedKeyFrom
		if from == (model.SecretEntry{}) {
			peers = append(peers, p)
			continue
		}
		key, why, answered := get(from)
		if key.IsZero() && !answered {
			waiting = true
			for _, b := range before {
				if b.Name == p.Name && b.PresharedKeyFrom == from {
					key = b.PresharedKey
				}
			}
		}
		if key.IsZero() {
			if answered {
				warnings = append(warnings, model.Warning{Kind: NoPresharedKey, Object: "peer/" + p.Name, Message: fmt.Sprintf(
					"spec.presharedKeySecretRef: Secret %s: %s; the Peer is left out until its key is there", from.Secret, why)})
			}
			continue
		}
		p.PresharedKey = key
		peers = append(peers, p)
	}
	s.Peers = peers
	return s, warnings, waiting
}
