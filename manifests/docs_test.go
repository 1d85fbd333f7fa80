package manifests_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/api"
)

// Every annotation that agents write, and every one that they read, has its row,
// and no other has.
func TestAnnotationsAreDocumented(t *testing.T) {
	people, agents, ok := strings.Cut(text(t, "../docs/annotations.md"), "## What agents write")
	if !ok {
		t.Fatal("docs/annotations.md has no part about what agents write")
	}
	inputs := []string{api.Location, api.ForceEndpoint, api.ForceInternalIP, api.Leader, api.PersistentKeepalive, api.AllowedLocationIPs}
	for _, part := range []struct {
		text string
		want []string
	}{{people, inputs}, {agents, api.Outputs()}} {
		var got []string
		for _, m := range regexp.MustCompile("(?m)^\\| `(kilo\\.squat\\.ai/[a-z-]+)`").FindAllStringSubmatch(part.text, -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
		slices.Sort(part.want)
		if !slices.Equal(got, part.want) {
			t.Errorf("docs/annotations.md has %q, want %q", got, part.want)
		}
	}
	// The inputs above are all there are: what names.go has between its headings.
	names := text(t, "../core/api/names.go")
	names, _, _ = strings.Cut(names[strings.Index(names, "// Inputs:"):], "// Outputs:")
	if n := strings.Count(names, `= "kilo.squat.ai/`); n != len(inputs) {
		t.Errorf("core/api/names.go has %d inputs, the documentation %d", n, len(inputs))
	}
}

// Manifests that documents name are there, and so is every page that they lead to.
func TestDocumentsLeadSomewhere(t *testing.T) {
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil || len(documents) < 8 {
		t.Fatalf("%d documents, error %v", len(documents), err)
	}
	seen := 0
	for _, document := range append(documents, "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md") {
		content := text(t, document)
		for _, name := range regexp.MustCompile(`kilo-[a-z0-9-]+\.yaml`).FindAllString(content, -1) {
			seen++
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s names %s, which is not there", document, name)
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(#[a-z0-9-]+)?\)`).FindAllStringSubmatch(content, -1) {
			target := filepath.Join(filepath.Dir(document), m[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s leads to %s, which is not there", document, m[1])
				continue
			}
			if m[2] != "" && !slices.Contains(anchors(text(t, target)), m[2]) {
				t.Errorf("%s leads to %s%s, and there is no such heading", document, m[1], m[2])
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d manifests are named in the documents", seen)
	}
}

// anchors are the headings of a page as links name them.
func anchors(page string) (out []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out = append(out, "#"+strings.ReplaceAll(name, " ", "-"))
	}
	return out
}
