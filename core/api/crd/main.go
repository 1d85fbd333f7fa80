// Crd prints the definition of Peers for manifests/crds.yaml, made of the Go
// types in core/api: fields and types as they are, descriptions from comments,
// and whatever else the API server should check from lines that begin with
// "+schema", which hold OpenAPI in YAML.
//
//	go run ./core/api/crd > manifests/crds.yaml
//
// It reads the source, not the types, because comments are part of it, and knows
// no more Go than core/api uses.
package main

import (
	"fmt"
	"os"
)

func main() {
	text, err := definition("core/api")
	if err != nil {
		fmt.Fprintln(os.Stderr, "crd:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}
