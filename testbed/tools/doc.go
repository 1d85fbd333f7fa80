// Package tools provides the real programs that the lab is made of: etcd, the
// Kubernetes control plane and kube-proxy, the CNI plugins, Flannel, Cilium.
//
// They are built from source with the Go toolchain. Every group of programs
// has a module of its own below modules/, whose go.mod and go.sum pin all that
// goes in, so the product's go.mod stays free of them:
//
//	modules/<set>/go.mod, go.sum, sources ──┐
//	Go version, architecture, build flags ──┴─► key ─► <cache>/<set>-<key>/<binary>
//
// A directory in the cache is complete or absent: it is filled under another
// name and renamed, and its manifest holds the digest of every binary, which is
// compared before use. Whoever finds a binary damaged builds the set anew. One
// lock for the whole cache means that two runs build a set once, and never two
// sets at a time.
//
// The cache is $KILO_LAB_CACHE, else kilo-lab in the user's cache directory. It
// can be deleted at any time. Cilium's agent needs sources when it runs: they are
// kept beside its binaries, as the manifest has them.
//
// To move to another version, change modules/<set>/go.mod and run `go mod
// tidy` there; the key changes with it. To add a program, add its package to a
// module's tool directives (or write a main package there, as for Flannel) and
// a line to Sets. Start reading at Ensure.
package tools
