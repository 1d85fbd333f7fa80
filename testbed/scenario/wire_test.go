package scenario

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// wires are captures of everything that could cross between locations: the
// internet's segment and every location's LAN.
type wires struct {
	lab      *lab.Lab
	captures map[string]*lab.Capture
}

// watchWires begins to record what should not be there:
//
//   - on the internet all but WireGuard and the way to the API server,
//   - on a LAN the same with a party outside of the LAN: what members and
//     gateway say to each other is the CNI's business.
func watchWires(t *testing.T, l *lab.Lab) *wires {
	t.Helper()
	cp := l.Machine("cp")
	// When a device is gone, its host says so, quoting the WireGuard packet.
	strange := fmt.Sprintf("ip and not udp port 51820"+
		" and not (tcp port 6443 and (host %s or host %s))"+
		" and not (icmp[icmptype] == icmp-unreach and icmp[17] == 17 and (icmp[28:2] == 51820 or icmp[30:2] == 51820))",
		cp.Addr, cp.Public)
	w := &wires{l, map[string]*lab.Capture{}}
	w.captures["internet"] = must(l.Internet().Capture(t.Context(), "", strange))(t)
	for _, loc := range l.Spec.Locations {
		if len(loc.Nodes) == 0 {
			continue // nothing is on its wire, not even who would answer a probe
		}
		lan := loc.Subnets[0]
		filter := fmt.Sprintf("%s and not (src net %s and dst net %s)", strange, lan, lan)
		w.captures[loc.Name] = must(l.Router(loc.Name).Capture(t.Context(), "lan0", filter))(t)
	}
	return w
}

// quiet ends the captures and fails the test for every packet in them, except
// for one that is sent now to know that the capture sees at all.
func (w *wires) quiet(t *testing.T) {
	t.Helper()
	probes, answers := map[string]string{}, map[string]string{}
	probe := func(wire string, router, to *lab.Place) {
		// From its own address first, so that it knows the other's MAC; to
		// the second nobody has to answer.
		router.Exec(t.Context(), "/usr/bin/ping", "-c1", "-W1", to.Addr.String())
		router.Exec(t.Context(), "/usr/bin/ping", "-c1", "-W1", "-I", router.Addr.String(), to.Addr.String())
		answers[wire] = fmt.Sprintf(" %s > %s: ICMP echo reply", to.Addr, router.Addr)
		probes[wire] = fmt.Sprintf(" %s > %s: ICMP echo request", router.Addr, to.Addr)
	}
	for _, loc := range w.lab.Spec.Locations {
		if len(loc.Nodes) == 0 {
			continue
		}
		probe(loc.Name, w.lab.Router(loc.Name), &w.lab.Machine(loc.Nodes[0].Name).Place)
	}
	probe("internet", w.lab.Router("a"), w.lab.Internet())

	for wire, c := range w.captures {
		packets := must(c.Stop(t.Context()))(t)
		sawProbe := false
		for _, p := range packets {
			if strings.Contains(p, probes[wire]) || strings.Contains(p, answers[wire]) {
				sawProbe = true
			} else {
				t.Errorf("in clear on the wire of %s: %s", wire, p)
			}
		}
		if !sawProbe {
			t.Errorf("the capture on the wire of %s saw nothing, not even%s", wire, probes[wire])
		}
	}
}
