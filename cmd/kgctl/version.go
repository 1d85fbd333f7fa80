package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func version(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: takes(),
		Long:    "Prints kgctl's version, the Go release that built it, and the platform.",
		Example: "  kgctl version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.out, "kgctl %s %s %s/%s\n", release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
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
