// Command watcher is an agent's view of a cluster and nothing else, so that its
// memory can be measured: watcher HOST TOKEN NODE COUNT says "complete" when
// it knows COUNT nodes and ends with its standard input.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"

	"k8s.io/client-go/rest"

	"github.com/kilo-overlay/kilo/core/cluster"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "watcher:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("want HOST TOKEN NODE COUNT, got %d arguments", len(args))
	}
	count, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	c := cluster.New(cluster.Config{
		REST: &rest.Config{Host: args[0], BearerToken: args[1], TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		Node: args[2], Version: "test", Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- c.Run(ctx) }()
	for known := false; !known; {
		select {
		case err := <-failed:
			return err
		case <-c.Changed():
			s, _, complete := c.Snapshot()
			known = complete && len(s.Nodes) >= count
		}
	}
	fmt.Println("complete")
	_, _ = os.Stdin.Read(make([]byte, 1))
	runtime.KeepAlive(c)
	return nil
}
