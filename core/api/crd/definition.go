package main

import (
	"sigs.k8s.io/yaml"

	"github.com/kilo-overlay/kilo/core/api"
)

const header = `# Peers: WireGuard parties outside the cluster. Compatible with the objects
# that Kilo stored; applying this over Kilo's definition keeps them.
#
# Made from the Go types: go run ./core/api/crd > manifests/crds.yaml
`

// definition returns the CustomResourceDefinition of Peers, in YAML.
func definition(dir string) (string, error) {
	s, err := parse(dir)
	if err != nil {
		return "", err
	}
	peer, err := s.named(api.Kind, s.types[api.Kind])
	if err != nil {
		return "", err
	}
	merge(peer, schema{"properties": schema{
		"apiVersion": schema{"type": "string"}, "kind": schema{"type": "string"}, "metadata": schema{"type": "object"},
	}})
	column := func(name, kind, path string, more schema) schema {
		out := schema{"name": name, "type": kind, "jsonPath": path}
		merge(out, more)
		return out
	}
	wide := schema{"priority": 1}
	condition := func(kind, field string) string { return `.status.conditions[?(@.type=="` + kind + `")].` + field }
	text, err := yaml.Marshal(schema{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": schema{"name": api.Resource + "." + api.Group},
		"spec": schema{
			"group": api.Group, "scope": "Cluster",
			"names": schema{"kind": api.Kind, "listKind": api.Kind + "List", "plural": api.Resource, "singular": "peer"},
			"versions": []any{schema{
				"name": api.Version, "served": true, "storage": true,
				"subresources": schema{"status": schema{}},
				"schema":       schema{"openAPIV3Schema": peer},
				"additionalPrinterColumns": []any{
					column("Allowed IPs", "string", ".spec.allowedIPs", nil),
					// An object prints as JSON, a string as itself.
					column("Endpoint", "string", ".spec.endpoint", nil),
					column("Ready", "string", condition(api.PeerReady, "status"), nil),
					column("Handshake", "date", ".status.lastHandshake", schema{"description": "When the gateway last heard the Peer, as of the last transition."}),
					column("Age", "date", ".metadata.creationTimestamp", nil),
					column("Why", "string", condition(api.PeerAccepted, "reason"), wide),
					column("Gateway", "string", ".status.gateway", wide),
					column("Public key", "string", ".spec.publicKey", wide),
				},
			}},
		},
	})
	return header + string(text), err
}
