// Command kg joins the locations of a Kubernetes cluster with WireGuard, on top
// of the CNI that the cluster already runs. It runs on every node.
//
// agent.go is the place where the agent's parts are put together: start there.
// uninstall.go, device.go and wg.go are the other things that kg does. flags.go and
// values.go say what can be asked of it, link.go keeps the WireGuard device,
// lock.go keeps a second agent out.
package main
