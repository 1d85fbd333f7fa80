package main

import (
	"context"
	"io"

	"github.com/kilo-overlay/kilo/core/render"
)

func graph(ctx context.Context, p *program, o *options) error {
	s, err := p.snapshot(ctx, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(p.out, render.Graph(s))
	return err
}
