// Command ensure builds the lab's tools, as far as the cache lacks them.
//
//	go run ./testbed/tools/ensure              all sets that the lab always needs
//	go run ./testbed/tools/ensure flannel cni  only these
//	go run ./testbed/tools/ensure -paths lint  and print "name path" a line
//
// Progress goes to standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

func main() {
	printPaths := flag.Bool("paths", false, "print the binaries' names and paths")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	paths, err := tools.Ensure(ctx, os.Stderr, flag.Args()...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ensure: %v\n", err)
		os.Exit(1)
	}
	if !*printPaths {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		fmt.Println(name, paths[name])
	}
}
