package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

const chart = "../../manifests/helm/kilo/"

// notInChart are flags that are no values of the chart, and why.
var notInChart = map[string]string{
	"hostname":      "each pod learns its Node's name from its environment",
	"compatibility": "an alias of --adapter",
	"cni":           "accepts only false",
	"local":         "accepts only false",
	"cni-path":      "is ignored",
	"version":       "prints and ends",
	"purge":         "kg uninstall's",
}

// Every flag is a value of the chart, with the same words where it takes words,
// and the chart passes it on; the chart has no flag that kg has not.
func TestChartKnowsEveryFlag(t *testing.T) {
	var schema struct {
		Properties map[string]struct{ Enum []any }
	}
	read(t, chart+"values.schema.json", json.Unmarshal, &schema)
	var values map[string]any
	read(t, chart+"values.yaml", func(b []byte, v any) error { return yaml.Unmarshal(b, v) }, &values)
	passed := passedFlags(t)

	o, err := parse(nil, noEnvironment, &strings.Builder{})
	if err != nil {
		t.Fatal(err)
	}
	o.flags().VisitAll(func(f *pflag.Flag) {
		if why, ok := notInChart[f.Name]; ok {
			if slices.Contains(passed, f.Name) {
				t.Errorf("the chart passes --%s on, which %s", f.Name, why)
			}
			return
		}
		name := valueName(f.Name)
		property, ok := schema.Properties[name]
		if _, there := values[name]; !ok || !there {
			t.Errorf("--%s: no value %s in values.yaml and values.schema.json", f.Name, name)
		}
		if !slices.Contains(passed, f.Name) {
			t.Errorf("--%s is not among kilo.flagNames in templates/_flags.tpl", f.Name)
		}
		if c, ok := f.Value.(*choice); ok {
			var words []string
			for _, w := range property.Enum {
				if w != nil {
					words = append(words, fmt.Sprint(w))
				}
			}
			if !slices.Equal(words, c.allowed) {
				t.Errorf("value %s takes %q, --%s takes %q", name, words, f.Name, c.allowed)
			}
		}
	})
	for _, name := range passed {
		if o.flags().Lookup(name) == nil {
			t.Errorf("the chart passes --%s on, which kg does not know", name)
		}
	}
}

// What values.yaml says of kg's defaults is so.
func TestChartTellsDefaults(t *testing.T) {
	text, err := os.ReadFile(chart + "values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse(nil, noEnvironment, &strings.Builder{})
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	o.flags().VisitAll(func(f *pflag.Flag) {
		before, _, ok := strings.Cut(string(text), "\n"+valueName(f.Name)+": null\n")
		if !ok {
			return
		}
		// The comment right above it.
		_, comment, _ := cutLast(before+"\n", "\n\n")
		if _, own, ok := cutLast(comment, ": null\n"); ok {
			comment = own
		}
		_, says, ok := strings.Cut(comment, "# null: ")
		if !ok {
			if _, says, ok = strings.Cut(comment, " null: "); !ok {
				return
			}
		}
		if f.DefValue == "" || strings.HasPrefix(f.Usage, "flanneld's") {
			return // a sentence
		}
		told++
		if says, _, _ = strings.Cut(says, "\n"); strings.TrimSuffix(says, ".") != f.DefValue {
			t.Errorf("%s: values.yaml says %q of null, kg's default is %q", valueName(f.Name), says, f.DefValue)
		}
	})
	if told < 10 {
		t.Errorf("only %d defaults found in values.yaml", told)
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// passedFlags are the names in the chart's list of flags.
func passedFlags(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(chart + "templates/_flags.tpl")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), `define "kilo.flagNames" -}}`)
	list, _, ok := strings.Cut(list, "{{")
	if !ok {
		t.Fatal("no kilo.flagNames in templates/_flags.tpl")
	}
	return strings.Fields(list)
}

// valueName makes mesh-granularity meshGranularity.
func valueName(flag string) string {
	words := strings.Split(flag, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

func noEnvironment(string) string { return "" }

func read(t *testing.T, path string, decode func([]byte, any) error, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = decode(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
