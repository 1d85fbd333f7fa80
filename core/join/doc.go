// Package join is the side of a party that joins the mesh from outside: a tunnel
// that holds what render.OutsideConfig says, and follows it.
//
// There are two. A Stack has a network of its own in this process: it needs no
// rights, runs everywhere, and is reached through a SOCKS5 proxy (ServeSOCKS). An
// Interface, on Linux, is a WireGuard link with addresses and routes, for every
// program on the machine.
package join

import (
	"context"

	"github.com/kilo-overlay/kilo/core/render"
)

// Tunnel is one end of WireGuard.
type Tunnel interface {
	// Set makes the tunnel hold these peers and no others. What is there already
	// goes on undisturbed, sessions and learned endpoints included.
	Set(ctx context.Context, peers []render.Peer) error
	// Close takes everything away that the tunnel brought along.
	Close() error
}
