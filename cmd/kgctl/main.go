package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// Exit codes.
const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2
	exitFinding = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := program{in: os.Stdin, out: os.Stdout, err: os.Stderr, load: loadCluster, ask: askAgents, resolve: lookUp, now: time.Now, pause: pause}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// program is kgctl with all that it reaches of the world.
type program struct {
	in       io.Reader
	out, err io.Writer
	// load reads the cluster once.
	load func(context.Context, *options) (model.Snapshot, []model.Warning, error)
	// ask gets what agents tell about themselves, one answer a node, in the
	// order of the nodes.
	ask func(context.Context, *options, []model.Node) ([]answer, error)
	// resolve looks up an endpoint's name.
	resolve resolver
	now     func() time.Time
	// pause waits; its error is the context's.
	pause func(context.Context, time.Duration) error
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// run does what the command line says and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	root := rootCommand(p)
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	c, err := root.ExecuteContextC(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errFindings):
		return exitFinding
	case errors.As(err, &usage):
		fmt.Fprintf(p.err, "kgctl: %v\nSee: %s --help\n", err, c.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(p.err, "kgctl: %v\n", err)
	return exitError
}

// errFindings is no failure: kgctl check found something, and said so.
var errFindings = errors.New("something was found")

// snapshot reads the cluster and tells what is wrong in it.
func (p *program) snapshot(ctx context.Context, o *options) (model.Snapshot, error) {
	s, warnings, err := p.load(ctx, o)
	if err != nil {
		return s, err
	}
	for _, w := range warnings {
		p.warn(w.String())
	}
	return s, checkMesh(s, o)
}

func (p *program) warn(text string) { fmt.Fprintf(p.err, "kgctl: warning: %s\n", text) }
