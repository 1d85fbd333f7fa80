// Package guest runs programs on a kernel that has what this machine's lacks:
// WireGuard, IPVS. It boots the kernel of Debian's linux-image-cloud-amd64 in QEMU,
// by emulation alone, so it needs neither KVM nor a module on the host.
//
//	kernel.go   the kernel: downloaded with apt-get, unpacked with dpkg, kept in
//	            the tools' cache, installed nowhere
//	module.go   which of its modules are loaded, in which order
//	image.go    the initial file system: programs with the libraries they need,
//	            files, modules; an archive that QEMU hands to the kernel
//	init/       the first and only process: loads the modules, runs what it is
//	            told, says how each ended, powers off
//	guest.go    Guest, what runs where, and Boot
//	nodes.go    guests that hold nodes of a lab's cluster
//	inside/     what runs in those: namespaces, Flannel, the agent, a router
//	twonodes/   two of them, whose agents are restarted and killed
//	services/   two of them, with kube-proxy in ipvs mode
//
// The programs are the tests of core/kernel and core/wireguard, and the agent
// itself. A boot takes some four seconds; what runs is slowed down by emulation
// to a tenth or less.
//
//	go test ./testbed/guest -v        (make test-kernel)
//
// What a machine lacks for it fails the tests. A run that sets KILO_LAB_SKIP
// to a reason skips them instead.
package guest
