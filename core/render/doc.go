// Package render shows the mesh to people: WireGuard configurations, a graph
// in DOT, tables.
//
// It is pure and runs wherever Go runs; cmd/kgctl prints what it returns, and
// so does the lab. It decides nothing about the mesh. Who serves a location
// and which prefix is whose comes from core/plan, asked in two ways: as the
// node that a configuration is for, and as an outsider (reach.go), so that
// what people are shown is what nodes do.
//
// Start with Config in config.go; showconf.go makes the configurations that
// kgctl prints, graph.go the graph, table.go the tables.
package render
