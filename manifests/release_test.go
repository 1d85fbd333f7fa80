package manifests_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The release is written down in the chart, the toolchain in go.mod, and neither
// anywhere else: what names a version twice will one day name two.
func TestVersionsAreWrittenDownOnce(t *testing.T) {
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal([]byte(text(t, "helm/kilo/Chart.yaml")), &chart); err != nil {
		t.Fatal(err)
	}
	if chart.Version == "" || chart.Version != chart.AppVersion {
		t.Errorf("Chart.yaml: version %q, appVersion %q", chart.Version, chart.AppVersion)
	}

	dockerfile := text(t, "../Dockerfile")
	for line := range strings.Lines(dockerfile) {
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "#") || len(words) == 0:
		case words[0] == "ARG" && strings.Contains(line, "="):
			t.Errorf("Dockerfile: %q has a default, which nobody keeps up with the place that it comes from", line)
		case words[0] == "FROM":
			image := words[1]
			if strings.HasPrefix(image, "--platform") {
				image = words[2]
			}
			if image != "scratch" && image != "base" && image != "golang:${GO_VERSION}" {
				t.Errorf("Dockerfile: from %s: want scratch, or Go's image of the version in go.mod", image)
			}
		case regexp.MustCompile(`[0-9]+\.[0-9]+`).MatchString(strings.ReplaceAll(line, "Apache-2.0", "")):
			t.Errorf("Dockerfile: %q names a version", line)
		}
	}
	if makefile := text(t, "../Makefile"); strings.Contains(makefile, chart.Version) {
		t.Errorf("Makefile names %s: it has it from the chart", chart.Version)
	}

	headings := regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(text(t, "../CHANGELOG.md"), -1)
	if len(headings) < 2 || headings[0][1] != "Unreleased" || headings[1][1] != chart.AppVersion {
		t.Errorf("CHANGELOG.md: %q: want what is unreleased, then %s", headings, chart.AppVersion)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
