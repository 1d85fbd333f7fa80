//go:build linux

// Command services has two nodes with kube-proxy in ipvs mode in a guest, and
// calls Services whose one backend is on the other node: a pod, and a process
// with the node's own address. It ends with an error where a call fails, where
// the backend sees another address than its caller's, or where anything but
// WireGuard wanted to pass between the nodes.
//
// With ipvs a node has every ClusterIP as an address of its own: a process on
// the node calls one from that very address.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/kilo-overlay/kilo/testbed/guest/inside"
)

func main() { inside.Main(scenario) }

func scenario(c *inside.Config, say func(format string, args ...any)) error {
	var services []inside.Service
	text, err := os.ReadFile(inside.ServicesFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &services); err != nil {
		return fmt.Errorf("%s: %w", inside.ServicesFile, err)
	}
	nodes, err := inside.Start(c)
	defer func() {
		for _, n := range nodes {
			n.End()
		}
	}()
	if err != nil {
		return err
	}
	say("two nodes with Flannel and a pod each: %s, %s", nodes[0].Pod, nodes[1].Pod)
	failed := calls(nodes, services, say)
	if failed != nil {
		for _, n := range nodes {
			rules, _ := n.Run("nft", "list", "table", "inet", "kilo")
			fmt.Printf("--- %s, agent:\n%s\n--- %[1]s, kube-proxy:\n%[3]s\n--- %[1]s:\n%[4]s\n", n.Name, n.Log(), n.ProxyLog(), rules)
		}
	}
	return failed
}

func calls(nodes []*inside.Node, services []inside.Service, say func(string, ...any)) error {
	if err := inside.OnlyWireGuard(nodes); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := errors.Join(n.TellCallers(), n.StartProxy("ipvs", "10.244.0.0/16"), n.StartAgent()); err != nil {
			return err
		}
	}
	for i, n := range nodes {
		if err := errors.Join(n.WaitReady("api"), n.Reaches(nodes[1-i].Pod)); err != nil {
			return err
		}
	}
	say("the agents are ready, the pods reach each other")
	var failed error
	made := 0
	for _, s := range services {
		for _, n := range nodes {
			if n.Name == s.Node {
				continue
			}
			for _, from := range []struct {
				what string
				pod  bool
				addr string
			}{{"the node " + n.Name, false, n.Address}, {"the pod of " + n.Name, true, n.Pod.String()}} {
				want := netip.MustParseAddr(from.addr)
				err := inside.Eventually(from.what+" calls "+s.Address.String(), func() error {
					seen, err := n.SeenAt(s.Address, from.pod)
					if err == nil && seen != want {
						err = fmt.Errorf("seen as %s, want %s", seen, want)
					}
					return err
				})
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				made++
				say("%s is seen as %s by what is behind %s on %s (host network: %v)", from.what, want, s.Address, s.Node, s.HostNetwork)
			}
			// That it was ipvs and nothing else.
			table, err := n.Run("cat", "/proc/net/ip_vs")
			hex := fmt.Sprintf("%X:%04X", s.Address.Addr().AsSlice(), s.Address.Port())
			if err != nil || !inside.HasWord(table, hex) {
				failed = errors.Join(failed, fmt.Errorf("%s: ipvs knows nothing of %s (%s): %v\n%s", n.Name, s.Address, hex, err, table))
			}
		}
	}
	if failed == nil && made != 8 {
		failed = fmt.Errorf("%d calls; want 8: nothing is proven", made)
	}
	return errors.Join(failed, inside.NothingInClear())
}
