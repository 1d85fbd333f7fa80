// Package wireguard makes the WireGuard link: in the kernel where the kernel
// has WireGuard, otherwise with the built-in userspace device (wireguard-go on
// a TUN interface) inside this process.
//
// Which of the two it is matters to nobody else: wgctrl drives a userspace
// device through its socket /var/run/wireguard/NAME.sock, and core/kernel sets
// keys, peers and addresses of either kind alike. This package only sees to it
// that the link is there, that it is ours, and that a stranger who has its
// name or its UDP port is named to the person who has to solve it.
//
// A kernel link outlives the agent and is adopted at the next start, never
// deleted and made again: others cache interface indexes. So is a userspace
// device that another process serves (a sidecar running Serve).
//
// An agent beside such a process is told to leave the link to it (External), so
// that of two that start at once only one makes it.
//
// Start with Ensure in ensure.go.
package wireguard
