package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/flags.md anew")

// docs/flags.md is what kg --help prints.
func TestFlagsAreDocumented(t *testing.T) {
	var help strings.Builder
	if err := run(t.Context(), []string{"--help"}, noEnvironment, &help, &help); err != nil {
		t.Fatal(err)
	}
	want := "# Flags of kg\n\nMade from `kg --help` by `go test ./cmd/kg -update`. In the chart each flag is a value: `--mesh-granularity` is\n" +
		"`meshGranularity`.\n\n```\n" + help.String() + "```\n"
	const path = "../../docs/flags.md"
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("docs/flags.md is not what kg --help prints (%v): go test ./cmd/kg -update", err)
	}
}
