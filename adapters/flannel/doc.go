// Package flannel is the adapter for Flannel: it reads what Flannel does on
// this node and says which routes lead a location's traffic to its gateway.
//
// What it reads, and from where:
//
//	/run/flannel/subnet.env   own pod prefixes, pod networks, pod MTU (subnetenv.go)
//	the Node's annotations    backend, VNI (record.go)
//	net-conf.json             the same, where the annotations are not known (netconf.go)
//	the kernel                devices, and Flannel's own routes in main (discover.go)
//
// Nothing of this is ever changed. What it adds is copied, not computed: a
// member reaches other locations with the very next hop that Flannel's route
// in main has for the gateway's pods, and a gateway answers a member with the
// one that it has for the member's pods (inject.go). So vxlan with any VNI,
// host-gw and vxlan with DirectRouting need no code of their own, and a
// packet that left through one device comes back through the same one, as
// strict rp_filter wants.
//
// docs/flannel.md says the same for people who run a cluster.
package flannel
