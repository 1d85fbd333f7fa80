package scenario

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// A node after `kg uninstall` is as it was before the agent came: rules,
// routes, links, nftables, iptables, sysctls, annotations, labels, conditions.
// While it runs, only what is ours is there in addition.
func TestUninstallLeavesNothing(t *testing.T) {
	spec := lab.Default()
	spec.Locations[1].Nodes[1].Annotations = map[string]string{"kilo.squat.ai/persistent-keepalive": "20", "example.com/owner": "somebody"}
	spec.Locations[1].Nodes[1].Labels = map[string]string{"kilo.squat.ai/location": "b", "example.com/rack": "7"}
	l := upWith(t, lab.Options{Name: labName(t), HoldAgents: true}, spec)
	before, nodes := map[string]lab.NetState{}, map[string]corev1.Node{}
	for _, n := range l.Nodes() {
		before[n.Name], nodes[n.Name] = must(n.NetState(t.Context()))(t), node(t, l, n.Name)
	}

	ok(t, l.StartAgents(t.Context()))
	whole(t, l, soon)
	for _, n := range l.Nodes() {
		without := withoutOurs(must(n.NetState(t.Context()))(t))
		if diff := before[n.Name].Diff(without); diff != "" {
			t.Errorf("%s, while the agent runs, beside what is ours:\n%s", n.Name, diff)
		}
		if without.String() == must(n.NetState(t.Context()))(t).String() {
			t.Errorf("%s has nothing of ours", n.Name)
		}
	}

	for _, n := range l.Nodes() {
		ok(t, n.UninstallAgent(t.Context()))
	}
	for _, n := range l.Nodes() {
		if diff := before[n.Name].Diff(must(n.NetState(t.Context()))(t)); diff != "" {
			t.Errorf("%s, before the agent came and after it went:\n%s", n.Name, diff)
		}
		was, is := nodes[n.Name], node(t, l, n.Name)
		if !maps.Equal(was.Annotations, is.Annotations) || !maps.Equal(was.Labels, is.Labels) {
			t.Errorf("%s had %v, %v\nand has %v, %v", n.Name, was.Annotations, was.Labels, is.Annotations, is.Labels)
		}
		if len(was.Status.Conditions) != len(is.Status.Conditions) {
			t.Errorf("%s has conditions %v", n.Name, is.Status.Conditions)
		}
		left := must(n.Shell(t.Context(), "ls /var/lib/kilo /run/wireguard 2>/dev/null || :"))(t)
		if strings.Contains(left, "json") || strings.Contains(left, "sock") {
			t.Errorf("%s keeps files:\n%s", n.Name, left)
		}
	}
	if m := must(l.Matrix(t.Context()))(t); m.Passed() != 10 {
		t.Errorf("%s, want the 10 within locations\n%s", m.Summary(), m)
	}
}

// withoutOurs takes out of a state what is known to be ours by where it is. In
// main, iptables, and the tables of others there is no such place.
func withoutOurs(s lab.NetState) lab.NetState {
	marks := map[string]string{"rules": "proto 107", "routes": "proto 107", "links": " kilo0: ", "addresses": " kilo0 ", "sysctls": ".kilo0."}
	var out lab.NetState
	for _, x := range s.Sections {
		mark, ourTable := marks[x.Name], false
		x.Lines = slices.DeleteFunc(slices.Clone(x.Lines), func(line string) bool {
			if x.Name == "nftables" {
				ours := ourTable || line == "table inet kilo {"
				ourTable = ours && line != "}"
				return ours
			}
			// The kernel's own, for the address of our link.
			connected := x.Name == "routes" && strings.Contains(line, " dev kilo0 table local proto kernel ")
			return mark != "" && strings.Contains(line, mark) || connected
		})
		out.Sections = append(out.Sections, x)
	}
	return out
}
