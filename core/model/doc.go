// Package model holds what is known about a cluster: its nodes, locations and
// peers, as plain values.
//
// A Snapshot is everything the planner reads about the world outside this
// node. It is made by core/cluster from Kubernetes objects, kept on disk for
// starts without an API server, and never changed after it was made. Values
// are net/netip; nothing here knows Kubernetes, the kernel or the clock, and
// the package imports the standard library only.
//
// Start with Snapshot, then Node.
package model
