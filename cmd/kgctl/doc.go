// Kgctl shows the mesh: as a graph, and as WireGuard configurations for its
// nodes and for parties outside the cluster. It reads Nodes and Peers once
// from the API server, plans with what the agents plan with, and changes
// nothing.
//
// main.go has the commands, options.go their flags, cluster.go what is read, and
// graph.go and showconf.go one command each. What is printed is made by
// core/render, whose golden files show it.
package main
