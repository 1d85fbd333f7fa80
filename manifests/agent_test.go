package manifests_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
)

// RBAC grants what the agent does, and not a verb more.
func TestRBACIsWhatTheAgentDoes(t *testing.T) {
	var granted []string
	for _, doc := range documents(t, "rbac.yaml") {
		var role struct { // Role and ClusterRole have one form
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
			Rules             []rbacv1.PolicyRule `json:"rules"`
		}
		decode(t, doc, &role)
		for _, r := range role.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						granted = append(granted, fmt.Sprintf("%s %s/%s %s in %q", verb, group, resource, strings.Join(r.ResourceNames, ","), role.Namespace))
					}
				}
			}
		}
	}
	var needed []string
	for _, p := range cluster.Permissions() {
		needed = append(needed, fmt.Sprintf("%s %s/%s %s in %q", p.Verb, p.Group, p.Resource, p.Name, p.Namespace))
	}
	slices.Sort(granted)
	slices.Sort(needed)
	if !slices.Equal(granted, needed) {
		t.Errorf("rbac.yaml grants\n%s\nthe agent does (cluster.Permissions)\n%s", strings.Join(granted, "\n"), strings.Join(needed, "\n"))
	}
}

// The policy lets through the annotations that agents write, and no others.
func TestPolicyKnowsTheOutputs(t *testing.T) {
	var policy admissionv1.ValidatingAdmissionPolicy
	decode(t, documents(t, "policy.yaml")[0], &policy)
	i := slices.IndexFunc(policy.Spec.Variables, func(v admissionv1.Variable) bool { return v.Name == "outputs" })
	if i < 0 {
		t.Fatal("no variable outputs in policy.yaml")
	}
	var names []string
	list, _, _ := strings.Cut(policy.Spec.Variables[i].Expression, "]")
	for _, m := range regexp.MustCompile(`'([^']+)'`).FindAllStringSubmatch(list, -1) {
		names = append(names, "kilo.squat.ai/"+m[1])
	}
	want := api.Outputs()
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("policy.yaml lets through %q, agents write %q (api.Outputs)", names, want)
	}
}

func documents(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n---\n")
}

func decode(t *testing.T, doc string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(doc), into); err != nil {
		t.Fatalf("%v in:\n%s", err, doc)
	}
}
