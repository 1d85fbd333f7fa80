// Package identity keeps the node's WireGuard private key in a file.
//
// The file is Kilo's: one line, the private key in base64, as `wg genkey`
// prints it. A node that ran Kilo keeps its identity, and could go back.
//
// A key is made once. Everybody else's WireGuard knows the node by it, so a
// file that cannot be read as a key stops the agent with a sentence and is
// left as it is: making a new key in its place would silently be another node.
package identity
