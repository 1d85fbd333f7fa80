package apply

import (
	"strings"

	"github.com/kilo-overlay/kilo/core/state"
)

// Report says what one Run did.
type Report struct {
	// Done, Failed and Held are all the Changes there were to make, each list
	// in order.
	Done   []state.Change
	Failed []*Failure
	// Held are Changes that were not tried.
	Held []Held
	// Now is what was observed last: after the Changes, if any was tried.
	Now state.State
	// Complete tells that all observations were, so that what is not in Now is
	// not in the kernel, and that Run went through to its end.
	Complete bool
}

// Failure is a Change that failed.
type Failure struct {
	Change state.Change
	Err    error
}

// Error names the Change, with the route or peer it is about, and the reason.
func (f *Failure) Error() string { return f.Change.String() + ": " + f.Err.Error() }

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }

// Held is a Change that has to wait for another Run.
type Held struct {
	Change state.Change
	Why    string
}

// Changed tells whether anything was changed in the kernel, or may have been
// by a Change that failed halfway.
func (r Report) Changed() bool { return len(r.Done)+len(r.Failed) > 0 }

// String prints a line for each Change; it is "" where there was none. Now has
// a String of its own.
func (r Report) String() string {
	var b strings.Builder
	for _, c := range r.Done {
		b.WriteString("done: " + c.String() + "\n")
	}
	for _, f := range r.Failed {
		b.WriteString("failed: " + f.Error() + "\n")
	}
	for _, h := range r.Held {
		b.WriteString("held: " + h.Change.String() + ": " + h.Why + "\n")
	}
	return b.String()
}
