// Package state holds what is wanted of, or was found in, this node's kernel:
// links with their WireGuard peers, routes, rules and one nftables table.
//
// A State lists only what is ours; see Ours. Two States compare with Diff,
// which gives the Changes that turn one into the other, in an order that adds
// before it removes and never opens a gap through which traffic for another
// location would leave in clear. String prints a State in the words of
// ip(8), wg(8) and nft(8); golden tests, kg's debug endpoint, kgctl and bug
// reports all show that form.
//
// No value here holds a private key. The package is pure: it imports
// core/model and the standard library.
//
// Start with State, then Diff in diff.go.
package state
