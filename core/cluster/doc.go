// Package cluster is Kubernetes in and out: it turns Nodes, Peers and the API
// servers' addresses into a model.Snapshot, and publishes what the local agent
// says about its own node.
//
//	Node ──ParseNode──┐
//	Peer ──ParsePeer──┼─► Resolve ─► Admit ─► model.Snapshot ─► disk
//	EndpointSlice ────┘   (two nodes,  (Peers
//	                       one thing)   that take)
//
//	model.Published ──Patch──► the local Node, where it differs and only there
//
// What decides is pure and in files of its own: node.go, peer.go and field.go
// read objects, resolve.go, claims.go and admit.go decide between objects,
// publish.go and condition.go say what to write. source.go watches, cluster.go
// puts the pieces together, disk.go keeps the last good state, dns.go looks
// names up, event.go tells owners of objects what is wrong with them.
//
// Three promises hold throughout. A bad object hurts itself alone and becomes
// a model.Warning. At rest nothing is written to the API server and nothing is
// asked but watches. Until every source has answered, Snapshot says so, and
// nobody may take what is missing for gone.
//
// Start with Cluster, then ParseNode.
package cluster
