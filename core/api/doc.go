// Package api holds the names by which people and agents talk through the
// Kubernetes API: the Peer resource (kilo.squat.ai/v1alpha1, cluster scoped)
// and the annotations and labels of a Node.
//
// Kilo's objects are ours: a Peer or an annotation that Kilo understood means
// the same here. The types decode what the API server stores and judge
// nothing; core/cluster's ParsePeer and ParseNode do.
//
// Start with Peer, then the constants in names.go, which tell inputs (people
// write, agents read) from outputs (an agent writes on its own Node).
package api
