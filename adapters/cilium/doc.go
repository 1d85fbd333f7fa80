// Package cilium is the adapter for clusters on Cilium.
//
// What Cilium does it hears from Cilium's agent on this node, at its API socket
// (agent.go); which pod prefixes are the node's it reads in the node's CiliumNode
// (node.go). Discover turns both into Facts (discover.go), and warns of settings
// that keep the mesh from working well (warn.go). Inject (inject.go) says how a
// member reaches its gateway, and the gateway its members: by a VXLAN of the
// mesh's own, since networks of clouds drop addresses that they do not know, or
// by the LAN.
//
// Cilium adopts links that have an address, and copies routes that name nothing
// but a device into main. So the WireGuard link stays without any address here
// (Facts.Unnumbered), and every route has a next hop. docs/cilium.md tells what
// Cilium has to be told.
package cilium
