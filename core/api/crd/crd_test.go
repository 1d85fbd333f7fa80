package main

import (
	"os"
	"testing"
)

// What the API server is told and what the agents read are one thing.
func TestManifestIsMadeFromTheTypes(t *testing.T) {
	want, err := definition("..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../manifests/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("manifests/crds.yaml is not what the types say; write it with: go run ./core/api/crd > manifests/crds.yaml")
	}
}
