// Package plan decides what one node's kernel should hold: Plan turns a
// Snapshot of the cluster and the node's own Facts into a state.State. It is
// pure: no clock, logger, file, network or goroutine, and the same input gives
// the same State on every machine, darwin included (a test keeps it so).
//
// Every node plans for itself from the same Snapshot, so all of them have to
// agree on who serves as gateway and which prefix belongs to whom. Those
// decisions take the Snapshot alone: Locations and Claim (locations.go),
// ground (ground.go: which prefix is whose, conflicts included), Addresses
// (addresses.go). The rest of the package turns them into links, routes, rules
// (plan.go, routes.go) and the nftables table (filter.go) for one node, and
// admits what the host CNI's adapter adds (admit.go). Exceptions that keep API
// servers reachable while the mesh is not up are in apiserver.go.
//
// docs/architecture.md explains the data path. Golden files in testdata show
// it case by case; start there.
package plan
