// Package adapter is the contract between the mesh core and the code that
// knows one host CNI. It holds types and documentation only.
//
// An adapter discovers what the host CNI does on this node, changing nothing,
// and says what must be added so that a location's traffic reaches its
// gateway: inter-location routes and encapsulation rules, never anything for
// traffic inside a location. The core admits additions (see plan.Admit): what
// leads elsewhere than to another location, sits outside our tables or clashes
// is refused and reported, whatever adapter it comes from.
//
// To write an adapter, read adapters/flannel and CONTRIBUTING.md.
// The contract itself is the interface Adapter in adapter.go; core/plan/admit.go
// is what holds adapters to it.
package adapter
