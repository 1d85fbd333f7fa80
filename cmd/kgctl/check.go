package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kilo-overlay/kilo/core/render"
)

func check(p *program, o *options) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "check", Aliases: []string{"doctor"}, Short: "Go through what usually goes wrong", Args: takes(),
		Long: `Goes through what usually goes wrong: agents that are missing, wait or may not do
what they have to; endpoints that do not resolve or do not answer; links without a
handshake; locations without a gateway; addresses and prefixes that two parties
claim; Peers that are left out; MTUs that are too large. Each finding says what,
where, why it matters and what to do.

Where something is found it looks again for a while, --settle, and tells what is
there each time: an agent that has just started, or a gateway that is changing, is
none.

Exit codes: 0 nothing was found but notes, 3 something was, 1 it could not look.`,
		Example: "  kgctl check\n  kgctl check --direct -o json --settle 0s",
	}
	var settle time.Duration
	c.Flags().DurationVar(&settle, "settle", 10*time.Second, "how long what is found has to last")
	o.liveFlags(c.Flags())
	form := choice(c, &output, "output", "o", "text", "form of the output", "text", "json", "yaml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := form(); err != nil {
			return err
		}
		list, err := p.lastingFindings(c.Context(), o, settle)
		if err != nil {
			return err
		}
		switch {
		case output != "text":
			if list == nil {
				list = []render.Finding{}
			}
			err = p.printObject(output, list)
		case len(list) == 0:
			_, err = fmt.Fprintln(p.out, "nothing is wrong")
		default:
			_, err = fmt.Fprint(p.out, render.FindingText(list))
		}
		if err == nil && render.Broken(list) {
			err = errFindings
		}
		return err
	}
	return c
}

// lookAgain is the pause between two looks.
const lookAgain = 2 * time.Second

// lastingFindings looks until nothing is wrong, or what is has lasted for settle.
func (p *program) lastingFindings(ctx context.Context, o *options, settle time.Duration) ([]render.Finding, error) {
	list, err := p.findings(ctx, o)
	for end := p.now().Add(settle); err == nil && render.Broken(list) && p.now().Before(end); {
		if err := p.pause(ctx, min(lookAgain, end.Sub(p.now()))); err != nil {
			return nil, err
		}
		var again []render.Finding
		if again, err = p.findings(ctx, o); err == nil {
			list = render.Lasting(list, again)
		}
	}
	return list, err
}

func (p *program) findings(ctx context.Context, o *options) ([]render.Finding, error) {
	s, warnings, err := p.load(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := checkMesh(s, o); err != nil {
		return nil, err
	}
	live, silent := p.agents(ctx, o, s)
	return render.Findings(p.resolveEndpoints(ctx, s), warnings, live, silent, p.now()), nil
}
