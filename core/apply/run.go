package apply

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/kilo-overlay/kilo/core/state"
)

// Run turns what k holds into wanted and reports what came of it. Changes are
// made one after the other in the order of state.Diff; after one that fails
// the others follow all the same, but for removals whose replacement failed.
//
// If k could be observed in part only, everything is added and nothing is
// removed: what is missing from such an observation is not absent.
//
// The error collects what went wrong (as a *multierror.Error): a *Failure for
// each Change that failed, and failures to observe. It is nil if the kernel
// then held what was wanted. When ctx ends, Run stops between two Changes;
// each stretch from the start of the list is as safe as the whole.
func Run(ctx context.Context, k Kernel, wanted state.State) (Report, error) {
	var report Report
	errs := &multierror.Error{ErrorFormat: oneLine}

	observed, err := k.Observe(ctx)
	if err != nil {
		errs = multierror.Append(errs, fmt.Errorf("the kernel could not be read in full, so nothing was removed: %w", err))
	}
	report.Now, report.Complete = observed, err == nil
	if ctx.Err() != nil {
		return report, errs.ErrorOrNil()
	}

	replace := replacements{}
	changes := state.Diff(observed, wanted)
	for i, c := range changes {
		if err := ctx.Err(); err != nil {
			errs = multierror.Append(errs, fmt.Errorf("stopped with %d of %d changes not made: %w", len(changes)-i, len(changes), err))
			for _, c := range changes[i:] {
				report.Held = append(report.Held, Held{c, "stopped before"})
			}
			report.Complete = false
			return report, errs.ErrorOrNil()
		}
		if why := held(c, report.Complete, replace); why != "" {
			report.Held = append(report.Held, Held{c, why})
			continue
		}
		if err := k.Apply(ctx, c); err != nil {
			f := &Failure{c, err}
			report.Failed = append(report.Failed, f)
			errs = multierror.Append(errs, f)
			replace.failed(c)
			continue
		}
		report.Done = append(report.Done, c)
	}

	if len(report.Done)+len(report.Failed) > 0 {
		now, err := k.Observe(ctx)
		if err != nil {
			errs = multierror.Append(errs, fmt.Errorf("the kernel could not be read in full after the changes: %w", err))
		}
		report.Now, report.Complete = now, report.Complete && err == nil
	}
	return report, errs.ErrorOrNil()
}

// held says why a Change must wait, or "".
func held(c state.Change, complete bool, failed replacements) string {
	switch {
	case !removes(c):
		return ""
	case !complete:
		return "the kernel could not be read in full"
	case failed.has(c):
		return "what would take its place failed"
	}
	return ""
}

// removes tells whether a Change takes something away.
func removes(c state.Change) bool {
	switch c := c.(type) {
	case state.DeleteLink, state.DeletePeer, state.DeleteRoute, state.DeleteRule:
		return true
	case state.SetPeer:
		return c.ReplaceAllowedIPs
	case state.SetFilter:
		return c.Filter.IsEmpty()
	}
	return false
}

// replacements remembers additions that failed, by what they would have
// replaced: the way of the same destination, the rule of the same priority.
// Peers are not among them: one that is not wanted any more must not keep its
// access because something else failed.
type replacements map[replaced]bool

// replaced is a destination in a table, or else a rule's priority and family.
type replaced struct {
	table, priority int
	v6              bool
	dst             netip.Prefix
}

func (r replacements) failed(c state.Change) {
	switch c := c.(type) {
	case state.SetRoute:
		r[replaced{table: c.Route.Table, dst: c.Route.Dst}] = true
	case state.AddRule:
		r[replaced{priority: c.Rule.Priority, v6: c.Rule.V6}] = true
	}
}

func (r replacements) has(c state.Change) bool {
	switch c := c.(type) {
	case state.DeleteRoute:
		return r[replaced{table: c.Route.Table, dst: c.Route.Dst}]
	case state.DeleteRule:
		return r[replaced{priority: c.Rule.Priority, v6: c.Rule.V6}]
	}
	return false
}

// mostErrors is how many errors a message spells out. When a device is
// missing, every route through it fails; a Report has them all.
const mostErrors = 8

func oneLine(errs []error) string {
	if len(errs) == 1 {
		return errs[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d errors", len(errs))
	for i, err := range errs {
		if i == mostErrors {
			fmt.Fprintf(&b, "; and %d more", len(errs)-i)
			break
		}
		b.WriteString(map[bool]string{true: ": ", false: "; "}[i == 0] + err.Error())
	}
	return b.String()
}
