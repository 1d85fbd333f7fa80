// Package lab runs a whole cluster network on one Linux machine, without
// containers and without a virtual machine, from real parts: etcd,
// kube-apiserver, kube-controller-manager, kube-proxy, Flannel or Cilium or both,
// the CNI plugins and the agent under test.
//
// # What stands for what
//
//	a machine    a network + mount + UTS namespace, held by one process
//	a location   a LAN: a bridge inside the namespace of the location's
//	             router, which translates addresses towards the internet
//	the internet one more namespace with a bridge, 198.51.100.0/24
//	a public leg a second interface of a node, on the internet's bridge
//	a pod        a real Pod object and a network namespace that the CNI
//	             plugins attach; its process answers HTTP with the address
//	             of whoever asks
//	the kubelet  one process of the lab: it writes Node status, Leases and
//	             Pod status, each from inside its node's network
//
// The host of the control plane is a node like the others, in a location of
// its own: pods elsewhere reach the kubernetes Service only through the mesh,
// as they would in life.
//
// # Cilium
//
// Its agents run as on machines of their own. Each has the BPF file system that
// it finds at the usual place, in its machine's mount namespace; the root of its
// control groups is the machine's group below the lab's, so that programs there
// see this machine's processes and pods; of the network namespaces it sees those
// of its pods; and sysctls of the whole kernel it cannot write. There is no
// operator (it cannot be built from public modules): the lab applies the
// CustomResourceDefinitions, and identities are CustomResources too. Agents
// compile their programs by a clang that remembers (clang.go): half a minute of
// two cores becomes a second from the second lab on.
//
// # What a lab leaves on the machine
//
// One directory and one cgroup, both named after the lab; no interface, no
// mount and no named namespace outside of the namespaces that its processes
// hold. Every process of a lab is born in the lab's cgroup and cannot leave
// it, so the kernel itself keeps the record of what is ours: Down works from
// another process, after an interrupted Up, and can never hit a stranger that
// was given a recycled process id.
//
// # Where to start reading
//
// Spec (spec.go) is the lab as a value. Up (lab.go) tells the story of a lab
// from top to bottom. Place (place.go) is where a command can run: a node, a
// pod, a router, the internet. Scenarios are in testbed/scenario.
package lab
