// Kgctl shows the mesh, prints WireGuard configurations for its nodes and for
// parties outside the cluster, and registers such parties. It reads Nodes and Peers
// from the API server and plans with what the agents plan with; only "peer add",
// "peer rm" and "connect" change something.
//
// main.go is where it begins; command.go has the tree of commands, each in a file of
// its own, options.go the flags that they share, cluster.go and agents.go what is
// read. What is printed is made by core/render, whose golden files show it.
package main
