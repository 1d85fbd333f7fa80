package cluster_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kilo-overlay/kilo/core/cluster"
)

// The manifest grants what the agent uses, and not one verb more.
func TestManifestGrantsExactlyWhatIsUsed(t *testing.T) {
	text, err := os.ReadFile("../../manifests/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	roles := make(map[string][]rbacv1.PolicyRule) // by kind and namespace
	bound := make(map[string]bool)
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Rules    []rbacv1.PolicyRule
			RoleRef  rbacv1.RoleRef
			Subjects []rbacv1.Subject
		}
		if err := documents.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch object.Kind {
		case "ClusterRole", "Role":
			roles[object.Kind+"/"+object.Metadata.Namespace] = object.Rules
		case "ClusterRoleBinding", "RoleBinding":
			for _, s := range object.Subjects {
				if s.Kind == "ServiceAccount" && s.Name == "kilo" && s.Namespace == "kube-system" && object.RoleRef.Name == "kilo" {
					bound[object.RoleRef.Kind+"/"+object.Metadata.Namespace] = true
				}
			}
		}
	}
	var granted []string
	for role, rules := range roles {
		if !bound[role] {
			t.Errorf("%s is bound to nobody", role)
		}
		namespace := ""
		if role != "ClusterRole/" {
			namespace = role[len("Role/"):]
		}
		for _, r := range rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						p := cluster.Permission{Verb: verb, Group: group, Resource: resource, Namespace: namespace}
						if len(r.ResourceNames) == 0 {
							granted = append(granted, p.String())
						}
						for _, p.Name = range r.ResourceNames {
							granted = append(granted, p.String())
						}
					}
				}
			}
		}
	}
	var used []string
	for _, p := range cluster.Permissions() {
		used = append(used, p.String())
	}
	slices.Sort(granted)
	slices.Sort(used)
	if diff := cmp.Diff(used, granted); diff != "" {
		t.Errorf("(-used +granted)\n%s", diff)
	}
}
