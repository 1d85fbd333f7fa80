package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kilo-overlay/kilo/core/model"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := program{out: os.Stdout, err: os.Stderr, load: loadCluster, resolve: lookUp}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// program is kgctl with all that it reaches of the world.
type program struct {
	out, err io.Writer
	// load reads the cluster once.
	load func(context.Context, *options) (model.Snapshot, []model.Warning, error)
	// resolve looks up an endpoint's name.
	resolve resolver
}

// run does what the command line says and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	o, c, err := parse(args)
	if err == nil && c.run == nil || o != nil && o.help {
		fmt.Fprint(p.out, help(c))
		return exitOK
	}
	if err == nil {
		err = c.run(ctx, p, o)
	}
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(p.err, "kgctl: %v\n", err)
		if c != nil {
			fmt.Fprintf(p.err, "See: %s --help\n", c.path)
		}
		return exitUsage
	}
	fmt.Fprintf(p.err, "kgctl: %v\n", err)
	return exitError
}

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
