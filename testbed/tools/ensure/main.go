// Command ensure builds the lab's tools, if the cache lacks them, and prints
// where they are.
//
//	go run ./testbed/tools/ensure              all sets that the lab always needs
//	go run ./testbed/tools/ensure flannel cni  only these
//	go run ./testbed/tools/ensure -q lint      print nothing but the paths
//
// Paths go to standard output, one "name path" a line; progress goes to
// standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

func main() {
	quiet := flag.Bool("q", false, "do not show progress")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	progress := io.Writer(os.Stderr)
	if *quiet {
		progress = io.Discard
	}
	paths, err := tools.Ensure(ctx, progress, flag.Args()...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ensure: %v\n", err)
		os.Exit(1)
	}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		fmt.Println(name, paths[name])
	}
}
