// Package kernel is the real apply.Kernel: Linux, through rtnetlink, nftables
// and WireGuard's own interface. No other package but core/wireguard, which
// makes the device, talks to these.
//
// It sees and touches only what is ours, and recognises it by where it is (the
// constants of core/state), so what an earlier process left is found and an
// agent keeps nothing in its head. Everything happens in the network namespace
// of the process.
//
// Kernel is in kernel.go; each kind of thing has a file that reads and writes
// it: link.go, tunnel.go, vxlan.go, route.go, rule.go, and for the nftables
// table filter.go and filter_read.go. A filter rule is turned into the kernel's
// expressions by compile.go and read back by decompile.go. watch.go tells when
// something changed, host.go what the node itself looks like.
//
// Forward (forward.go for nftables, legacy.go for iptables-legacy) is apart from
// that: it finds chains of others that drop what is forwarded, and puts an accept
// into one only when told to.
package kernel
