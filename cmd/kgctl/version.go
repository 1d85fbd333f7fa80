package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

func version(_ context.Context, p *program, _ *options) error {
	_, err := fmt.Fprintf(p.out, "kgctl %s %s %s/%s\n", release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// stamped is set by the linker where a release is built.
var stamped string

// release is what was stamped, or else the tag or commit that the Go toolchain recorded in the binary.
func release() string {
	if stamped != "" {
		return stamped
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
