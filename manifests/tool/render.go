package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// chartDir is the chart, below manifests/. Its files/crds.yaml is a link to
// manifests/crds.yaml, which Helm follows where it packs or renders the chart.
const chartDir = "helm/kilo"

// order is that in which things are applied: who may do what first.
var order = []string{"crds.yaml", "rbac.yaml", "policy.yaml", "wireguard.yaml", "daemonset.yaml", "uninstall.yaml", "podmonitor.yaml", "prometheusrule.yaml"}

// render returns the chart's templates with these values, by file name, as Helm
// renders them; templates that come out empty are left out. An error is Helm's
// own, such as a value that the schema refuses.
func render(chart string, release common.ReleaseOptions, v values) (map[string]string, error) {
	loaded, err := loader.LoadDir(chart)
	if err != nil {
		return nil, err
	}
	full, err := util.ToRenderValues(loaded, v, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	// The templates' labels name who applies them.
	full["Release"].(map[string]any)["Service"] = service(release)
	files, err := engine.Render(loaded, full)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, text := range files {
		if text = strings.TrimSpace(text); text != "" {
			out[path.Base(name)] = text
		}
	}
	return out, nil
}

// service is "manifests" for what is applied by hand: a release without a name.
func service(r common.ReleaseOptions) string {
	if r.Name == "" {
		return "manifests"
	}
	return "Helm"
}

// text is the manifest: its comment and the chart's objects.
func (v variant) text(chart string) (string, error) {
	with := values{"crds": values{"install": false}}
	maps.Copy(with, v.Values)
	files, err := render(chart, common.ReleaseOptions{Namespace: "kube-system"}, with)
	if err != nil {
		return "", fmt.Errorf("%s: %w", v.File, err)
	}
	only := v.Only
	if only == nil {
		only = order
	}
	for _, name := range only {
		if !slices.Contains(order, name) {
			return "", fmt.Errorf("%s: no template %s", v.File, name)
		}
	}
	var out strings.Builder
	out.WriteString("# Made from the chart in manifests/helm/kilo by \"make manifests\": change that.\n")
	for line := range strings.Lines(v.Comment + "\n") {
		out.WriteString("# " + line)
	}
	first := true
	for _, name := range order {
		text, ok := files[name]
		if !ok || !slices.Contains(only, name) {
			continue
		}
		if !first {
			out.WriteString("---\n")
		}
		first = false
		out.WriteString(strings.TrimPrefix(text, "---\n") + "\n")
	}
	return out.String(), nil
}
