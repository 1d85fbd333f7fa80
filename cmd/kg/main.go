package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// release is set by the linker where a release is built.
var release string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if args, ok := calledWG(os.Args[0], os.Args[1:]); ok {
		err = showWireGuard(args, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kg:", err)
		os.Exit(1)
	}
}

// run is kg but for the process around it.
func run(ctx context.Context, args []string, getenv func(string) string, out, log io.Writer) error {
	do := runAgent
	if len(args) > 0 {
		switch args[0] {
		case "wireguard":
			do, args = serveDevice, args[1:]
		case "uninstall":
			do, args = uninstall, args[1:]
		case "pause":
			do, args = pause, args[1:]
		case "version":
			do, args = printVersion, args[1:]
		}
	}
	o, err := parse(args, getenv, out)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w\nkg --help lists all flags", err)
	}
	if o.version {
		do = printVersion
	}
	return do(ctx, o, out, log)
}

// pause does nothing until it is told to end: a pod that has done its work, such
// as kg uninstall on a node, stays for others to see, and the image has no shell.
func pause(ctx context.Context, _ *options, _, _ io.Writer) error {
	<-ctx.Done()
	return nil
}

func printVersion(_ context.Context, _ *options, out, _ io.Writer) error {
	_, err := fmt.Fprintln(out, version())
	return err
}

// version is the release, or else the commit that the Go toolchain recorded.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
