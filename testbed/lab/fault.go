package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// PowerOff takes the machine away as a power cut does: its links are gone at
// once, then its processes. Its disk stays.
func (m *Machine) PowerOff(ctx context.Context) error {
	if !m.Alive() {
		return fmt.Errorf("%s is powered off already", m.Name)
	}
	if err := m.lab.unplug(ctx, m.loc, m.spec); err != nil {
		return err
	}
	return m.group.remove(ctx)
}

// PowerOn boots the machine again, with all that ran on it.
func (m *Machine) PowerOn(ctx context.Context) error {
	if m.Alive() {
		return fmt.Errorf("%s is powered on already", m.Name)
	}
	return m.lab.switchOn(ctx, m)
}

// switchOn boots a machine of a lab that is up, and starts everything on it.
func (l *Lab) switchOn(ctx context.Context, m *Machine) error {
	if err := l.boot(ctx, m.loc, m.spec); err != nil {
		return err
	}
	if err := l.applyCuts(ctx); err != nil {
		return err
	}
	if m.spec.Outsider {
		return nil
	}
	if m.spec.ControlPlane {
		if err := l.startControlPlane(ctx); err != nil {
			return err
		}
	}
	if err := m.Register(ctx); err != nil {
		return err
	}
	if err := l.startNode(ctx, m); err != nil {
		return err
	}
	if l.Spec.CNI.hasCilium() {
		if err := m.WaitForCilium(ctx); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(l.Agents(), func(a *Machine) bool { return a.Name == m.Name }) {
		if err := m.startAgentPod(ctx); err != nil {
			return err
		}
	}
	return l.save(true)
}

// Join adds a machine to a location of the running lab: a node with all that
// runs on one, or an outsider.
func (l *Lab) Join(ctx context.Context, location string, n Node) (*Machine, error) {
	i := slices.IndexFunc(l.Spec.Locations, func(loc Location) bool { return loc.Name == location })
	if i < 0 {
		return nil, fmt.Errorf("lab %s has no location %q", l.Name, location)
	}
	spec := l.Spec.clone()
	spec.Locations[i].Nodes = append(spec.Locations[i].Nodes, n)
	spec, err := spec.Complete()
	if err != nil {
		return nil, err
	}
	l.Spec = spec
	// Recorded first: the kubelets must know it.
	if err := l.save(true); err != nil {
		return nil, err
	}
	m := l.Machine(n.Name)
	return m, l.switchOn(ctx, m)
}

// Leave takes a machine out of the cluster for good: power, Node, Pods, disk.
func (l *Lab) Leave(ctx context.Context, name string) error {
	m := l.Machine(name)
	if m.Alive() {
		if err := m.PowerOff(ctx); err != nil {
			return err
		}
	}
	spec := l.Spec.clone()
	for i := range spec.Locations {
		spec.Locations[i].Nodes = slices.DeleteFunc(spec.Locations[i].Nodes, func(n Node) bool { return n.Name == name })
	}
	l.Spec = spec
	l.mu.Lock()
	l.pods = slices.DeleteFunc(l.pods, func(p *Pod) bool { return p.Node == name })
	l.mu.Unlock()
	if err := l.save(true); err != nil {
		return err
	}
	if m.spec.Outsider {
		return nil
	}
	return m.Unregister(ctx)
}

// Cut is what the networks between two machines no longer carry: packets from
// From to To.
type Cut struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Partition stops all packets between two sides, each the name of a machine or
// of a location. Their addresses on LANs and on the internet are cut, wherever
// the packets would pass.
func (l *Lab) Partition(ctx context.Context, a, b string) error {
	if err := l.PartitionOneWay(ctx, a, b); err != nil {
		return err
	}
	return l.PartitionOneWay(ctx, b, a)
}

// PartitionOneWay stops packets from one side to the other only.
func (l *Lab) PartitionOneWay(ctx context.Context, from, to string) error {
	cuts, err := l.cutsBetween(from, to)
	if err != nil {
		return err
	}
	for _, c := range cuts {
		if !slices.Contains(l.cuts, c) {
			l.cuts = append(l.cuts, c)
		}
	}
	return l.recut(ctx)
}

// Heal lets packets between two sides pass again, both ways.
func (l *Lab) Heal(ctx context.Context, a, b string) error {
	there, err := l.cutsBetween(a, b)
	if err != nil {
		return err
	}
	back, err := l.cutsBetween(b, a)
	if err != nil {
		return err
	}
	l.cuts = slices.DeleteFunc(l.cuts, func(c Cut) bool { return slices.Contains(there, c) || slices.Contains(back, c) })
	return l.recut(ctx)
}

// HealAll lets all packets pass again.
func (l *Lab) HealAll(ctx context.Context) error {
	l.cuts = nil
	return l.recut(ctx)
}

// Cuts are in force now.
func (l *Lab) Cuts() []Cut { return slices.Clone(l.cuts) }

func (l *Lab) recut(ctx context.Context) error {
	if err := l.save(true); err != nil {
		return err
	}
	return l.applyCuts(ctx)
}

// cutsBetween lists all pairs of two sides.
func (l *Lab) cutsBetween(from, to string) ([]Cut, error) {
	side := func(name string) ([]string, error) {
		var names []string
		for _, m := range l.Machines() {
			if m.Name == name || strings.EqualFold(m.Location, name) {
				names = append(names, m.Name)
			}
		}
		if names == nil {
			return nil, fmt.Errorf("lab %s has neither a machine nor a location %q", l.Name, name)
		}
		return names, nil
	}
	sources, err := side(from)
	if err != nil {
		return nil, err
	}
	destinations, err := side(to)
	if err != nil {
		return nil, err
	}
	var cuts []Cut
	for _, s := range sources {
		for _, d := range destinations {
			if s != d {
				cuts = append(cuts, Cut{From: s, To: d})
			}
		}
	}
	return cuts, nil
}

// port is a machine's end at a switch: where a cut is made.
type port struct {
	place string // router or internet
	hook  string // ingress: from the machine; egress: to it
	name  string // the machine's
}

// cutPorts says where which addresses are dropped. Nothing is done inside the
// machines: their own rules stay as they are.
//
// A packet is recognised by its destination where it leaves From. Only where To
// hides behind a router that it shares with others does that not tell enough;
// then it is recognised by its source where it reaches To, and if From hides
// too, all of To's location is cut off from From.
func (l *Lab) cutPorts() map[port][]netip.Addr {
	ports := map[port][]netip.Addr{}
	drop := func(p port, a netip.Addr) {
		if a.IsValid() && !slices.Contains(ports[p], a) {
			ports[p] = append(ports[p], a)
		}
	}
	for _, c := range l.cuts {
		fromLoc, from, ok := l.Spec.node(c.From)
		toLoc, to, ok2 := l.Spec.node(c.To)
		if !ok || !ok2 {
			continue // one of them has left
		}
		leaves := func(a netip.Addr) {
			if from.LAN.IsValid() {
				drop(port{routerName(fromLoc), "ingress", from.Name}, a)
			}
			if from.Public {
				drop(port{internet, "ingress", from.Name}, a)
			}
		}
		leaves(to.LAN)
		leaves(to.PublicIP)
		switch hidden := !to.Public && fromLoc != toLoc; {
		case hidden && from.Public:
			drop(port{routerName(toLoc), "egress", to.Name}, from.PublicIP)
		case hidden:
			leaves(toLoc.Router)
		}
	}
	return ports
}

// applyCuts makes the networks drop what l.cuts says, and nothing else.
func (l *Lab) applyCuts(ctx context.Context) error {
	rules := map[string]*strings.Builder{}
	begin := func(place string) *strings.Builder {
		if rules[place] == nil {
			rules[place] = new(strings.Builder)
			// Made, then deleted: no error where there was none.
			rules[place].WriteString("table netdev cuts\ndelete table netdev cuts\n")
		}
		return rules[place]
	}
	begin(internet)
	for _, loc := range l.Spec.Locations {
		if len(loc.Subnets) > 0 {
			begin(routerName(&loc))
		}
	}
	for p, addrs := range l.cutPorts() {
		if !l.Machine(p.name).Alive() {
			continue // no such port now; PowerOn comes here again
		}
		field := map[string]string{"ingress": "daddr", "egress": "saddr"}[p.hook]
		var list []string
		for _, a := range addrs {
			list = append(list, a.String())
		}
		fmt.Fprintf(begin(p.place), `table netdev cuts {
	chain %s-%s {
		type filter hook %s device "%s" priority filter;
		ip %s { %s } drop
	}
}
`, p.hook, p.name, p.hook, p.name, field, strings.Join(list, ", "))
	}
	for place, text := range rules {
		if err := l.nft(ctx, place, text.String()); err != nil {
			return err
		}
	}
	return nil
}

// RestartProxy ends kube-proxy by its own process id and starts it.
func (m *Machine) RestartProxy(ctx context.Context) error {
	if err := m.stopDaemon(ctx, tools.KubeProxy); err != nil {
		return err
	}
	return m.lab.startProxy(ctx, m)
}
