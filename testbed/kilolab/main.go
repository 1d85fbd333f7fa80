package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kilolab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage")
	}
	name := flag.NewFlagSet(args[0], flag.ContinueOnError)
	n := name.String("name", "default", "")
	noKg := name.Bool("no-kg", false, "")
	if args[0] != "echo" {
		if err := name.Parse(args[1:]); err != nil {
			return err
		}
	}
	rest := name.Args()
	switch args[0] {
	case "up":
		spec := lab.Default()
		spec.NoAgent = *noKg
		_, err := lab.Up(ctx, spec, lab.Options{Name: *n, Progress: os.Stdout})
		return err
	case "down":
		return lab.Down(ctx, *n)
	case "kubelets":
		return lab.Kubelets(ctx, *n)
	case "echo":
		return lab.Echo(args[1])
	}
	l, err := lab.Open(*n)
	if err != nil {
		return err
	}
	switch args[0] {
	case "exec":
		p, err := l.Find(rest[0])
		if err != nil {
			return err
		}
		return p.Become(rest[1:]...)
	case "kubectl":
		return l.BecomeKubectl(rest...)
	case "matrix":
		m, err := l.Matrix(ctx)
		if err != nil {
			return err
		}
		fmt.Println(m)
		_ = json.Marshal
	}
	return nil
}
