package state

import (
	"fmt"
	"net/netip"

	"github.com/kilo-overlay/kilo/core/model"
)

// Change is one step from an observed State to a wanted one. Every Change is
// idempotent: applying it where it already holds, or removing what is already
// gone, is no error.
type Change interface {
	fmt.Stringer
	change()
}

type (
	// SetLink creates a link or brings an existing one to what Link says, its
	// peers excepted (those have Changes of their own). It never deletes and
	// recreates a link of the right kind: others cache interface indexes. It
	// adds addresses before it removes any: with the last IPv4 address a link
	// loses its routes.
	SetLink struct{ Link Link }

	// DeleteLink removes a link of ours. Its addresses, routes and peers go
	// along.
	DeleteLink struct{ Name string }

	// SetPeer creates or patches one WireGuard peer. PresharedKey and Keepalive
	// are always written; a zero one turns the thing off.
	SetPeer struct {
		Link string
		// Peer is what is wanted in the end.
		Peer Peer
		// Create tells that the peer was not seen before.
		Create bool
		// SetEndpoint tells to write Peer.Endpoint; otherwise the device keeps its own.
		SetEndpoint bool
		// AddAllowedIPs are to be added; WireGuard takes them from whichever peer
		// has them. With ReplaceAllowedIPs all of Peer.AllowedIPs are written in
		// place of what is there, which takes the peer out of the data path for
		// an instant and is needed only where some must go.
		AddAllowedIPs     []netip.Prefix
		ReplaceAllowedIPs bool
	}

	// DeletePeer removes one WireGuard peer.
	DeletePeer struct {
		Link string
		Key  model.Key
	}

	// SetRoute adds a route, replacing one of the same table, destination and metric.
	SetRoute struct{ Route Route }

	// DeleteRoute removes a route. Another that has taken its table,
	// destination and metric since stays.
	DeleteRoute struct{ Route Route }

	// AddRule adds a policy routing rule.
	AddRule struct{ Rule Rule }

	// DeleteRule removes a rule.
	DeleteRule struct{ Rule Rule }

	// SetFilter replaces the table inet kilo in one transaction; an empty
	// Filter removes it.
	SetFilter struct{ Filter Filter }
)

func (SetLink) change()     {}
func (DeleteLink) change()  {}
func (SetPeer) change()     {}
func (DeletePeer) change()  {}
func (SetRoute) change()    {}
func (DeleteRoute) change() {}
func (AddRule) change()     {}
func (DeleteRule) change()  {}
func (SetFilter) change()   {}
