package apply

import (
	"context"

	"github.com/kilo-overlay/kilo/core/state"
)

// Kernel is what the mesh needs of an operating system. core/kernel talks to
// the real one; core/kerneltest keeps one in memory that passes the same
// suite.
type Kernel interface {
	// Observe returns what is ours, and only that. A part that could not be
	// read is an error together with what could: the caller must not take what
	// is missing for absent.
	Observe(ctx context.Context) (state.State, error)
	// Apply makes one Change. It is idempotent; a device that is not there
	// (yet) is an error that names it.
	Apply(ctx context.Context, c state.Change) error
}
