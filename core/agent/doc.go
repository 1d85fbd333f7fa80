// Package agent runs the mesh on one node: it gathers what is known, has
// core/plan decide what the kernel should hold, and has core/apply bring it
// about, again whenever something changed and now and then without a reason.
//
// All goroutines of the product live here, and each has one task:
//
//	cluster    informers; its changes wake the loop
//	discoverer asks the host CNI's adapter; new facts wake the loop
//	kernel     watches netlink and nftables; drift wakes the loop
//	prober     asks locations with API servers whether their tunnel lives
//	sizer      measures how large packets to WireGuard peers may be
//	forwarder  watches the FORWARD chains of others
//	listener   notices endpoints that WireGuard learned, and handshakes with silent peers
//	loop       one wake-up, one full recomputation (pass.go)
//	publisher  writes what the node says about itself to its Node
//	permissions  asks what the API server forbids
//	server     metrics, health, status
//
// The loop never waits for the API server nor for the host CNI: it takes what
// the other goroutines know at the moment. Its thinking is one pure function,
// decide (decide.go); what surrounds it in pass.go gathers and acts.
//
// Nothing is removed from the kernel before everything it depends on has
// reported (keep.go), and nothing is removed because the process ends.
//
// Start with Config and Agent.Run in agent.go, then pass.go.
package agent
