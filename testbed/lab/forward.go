package lab

import (
	"context"
	"io"
	"net"
)

// Forward carries TCP connections from one address to another until ctx ends.
func Forward(ctx context.Context, from, to string) error {
	l, err := net.Listen("tcp", from)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		near, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer near.Close()
			far, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
			if err != nil {
				return
			}
			defer far.Close()
			go func() {
				_, _ = io.Copy(far, near)
				_ = far.Close()
			}()
			_, _ = io.Copy(near, far)
		}()
	}
}
