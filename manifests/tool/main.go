// Command tool writes the manifests of the repository from the chart in
// manifests/helm/kilo, each with the values that variants.go gives it:
//
//	cd manifests/tool && go run .
//
// Its tests say where they differ, and hold the chart to what it promises.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", "..", "the directory manifests")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

// write makes every manifest below dir anew.
func write(dir string) error {
	for _, v := range variants() {
		text, err := v.text(filepath.Join(dir, chartDir))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, v.File), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
