package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// The internet, and the name of its segment there.
const (
	internet        = "internet"
	internetSegment = "segment"
)

// routerName is the place of a location's router.
func routerName(loc *Location) string { return "router-" + loc.Name }

// lanSegment is the name of a LAN's bridge in its router.
func lanSegment(i int) string { return fmt.Sprintf("lan%d", i) }

// wireInternet makes the internet: one segment that joins all routers and
// public legs. It forwards nothing, so private addresses lead nowhere, unless
// it is routed; then every leg is a link of its own and it routes between them.
func (l *Lab) wireInternet(ctx context.Context) error {
	if _, err := l.holdNetwork(ctx, internet); err != nil {
		return err
	}
	addr := l.Spec.internetAddr()
	if !l.Spec.RoutedInternet {
		return l.ip(ctx, internet,
			"link add "+internetSegment+" type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
			fmt.Sprintf("link set %s mtu %d up", internetSegment, l.Spec.MTU),
			fmt.Sprintf("addr add %s/%d dev %s", addr, l.Spec.Internet.Bits(), internetSegment),
		)
	}
	pid, err := l.holderOf(internet)
	if err != nil {
		return err
	}
	if _, err := l.runAt(ctx, internet, pid, "echo 1 >/proc/sys/net/ipv4/ip_forward"); err != nil {
		return err
	}
	return l.ip(ctx, internet, fmt.Sprintf("addr add %s/32 dev lo", addr))
}

// wireRouter makes a location's router: a bridge for each LAN, an uplink, and
// address translation on it. Like the box in every office it lets nothing in
// that nobody inside asked for.
func (l *Lab) wireRouter(ctx context.Context, loc *Location) error {
	if len(loc.Subnets) == 0 {
		return nil
	}
	name := routerName(loc)
	pid, err := l.holdNetwork(ctx, name)
	if err != nil {
		return err
	}
	if _, err := l.runAt(ctx, name, pid, "echo 1 >/proc/sys/net/ipv4/ip_forward"); err != nil {
		return err
	}
	var lines []string
	for i, subnet := range loc.Subnets {
		lines = append(lines,
			"link add "+lanSegment(i)+" type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
			fmt.Sprintf("link set %s mtu %d up", lanSegment(i), l.Spec.MTU),
			fmt.Sprintf("addr add %s/%d dev %s", lastHost(subnet), subnet.Bits(), lanSegment(i)),
		)
	}
	if err := l.ip(ctx, name, lines...); err != nil {
		return err
	}
	if err := l.wirePublic(ctx, name, "wan", leg{addr: loc.Router, mtu: l.Spec.MTU}); err != nil {
		return err
	}
	if loc.Cloud {
		if err := l.checkAddresses(ctx, loc); err != nil {
			return err
		}
	}
	// persistent: one client keeps one outside address and, while it is free,
	// its source port, so what a STUN-like observer sees is what others can
	// use.
	return l.nft(ctx, name, `
		table ip router {
			# As home routers do. One that answers what nobody asked for would also
			# remember it, and give the same flow from inside another port.
			chain input {
				type filter hook input priority filter;
				iifname "wan" ct state new meta l4proto { tcp, udp } drop
			}
			chain forward {
				type filter hook forward priority filter;
				iifname "wan" ct state new drop
			}
			chain translate {
				type nat hook postrouting priority srcnat;
				oifname "wan" masquerade persistent
			}
		}
	`)
}

// checkAddresses makes a location's networks drop, from machine to machine,
// what is from or to an address that is none of theirs. What is for elsewhere
// is for the router itself, and so is not concerned.
func (l *Lab) checkAddresses(ctx context.Context, loc *Location) error {
	var subnets []string
	for _, s := range loc.Subnets {
		subnets = append(subnets, s.String())
	}
	own := "{ " + strings.Join(subnets, ", ") + " }"
	return l.nft(ctx, routerName(loc), fmt.Sprintf(`
		table bridge cloud {
			chain forward {
				type filter hook forward priority filter;
				ip saddr != %[1]s drop
				ip daddr != %[1]s drop
			}
		}
		table ip cloud {
			chain forward {
				type filter hook forward priority filter;
				iifname "lan*" oifname "lan*" ip saddr != %[1]s drop
				iifname "lan*" oifname "lan*" ip daddr != %[1]s drop
			}
		}
	`, own))
}

// wireNode gives a machine its interfaces.
func (l *Lab) wireNode(ctx context.Context, loc *Location, n *Node) error {
	if n.LAN.IsValid() {
		router := routerName(loc)
		pid, err := l.holderOf(router)
		if err != nil {
			return err
		}
		lines := append([]string{
			fmt.Sprintf("link add name %s mtu %d type veth peer name %s mtu %d netns %d", n.lanInterface(), n.MTU, n.Name, n.MTU, pid),
		}, lanAddress(loc, n)...)
		if err := l.ip(ctx, n.Name, lines...); err != nil {
			return err
		}
		if err := l.ip(ctx, router, fmt.Sprintf("link set %s master %s up", n.Name, lanSegment(n.Subnet))); err != nil {
			return err
		}
	}
	if n.Public {
		return l.wirePublic(ctx, n.Name, n.publicInterface(), leg{addr: n.PublicIP, mtu: n.MTU})
	}
	return nil
}

// wirePublic connects a place to the internet; its port there has its name.
func (l *Lab) wirePublic(ctx context.Context, place, device string, leg leg) error {
	pid, err := l.holderOf(internet)
	if err != nil {
		return err
	}
	uplink := []string{fmt.Sprintf("link set %s master %s up", place, internetSegment)}
	if l.Spec.RoutedInternet {
		uplink = []string{
			fmt.Sprintf("link set %s up", place),
			l.routeToLeg(place, leg.addr),
		}
	}
	// The far port first: a route out of a link without carrier is refused
	// by some kernels.
	link := fmt.Sprintf("link add name %s mtu %d type veth peer name %s mtu %d netns %d", device, leg.mtu, place, leg.mtu, pid)
	if err := l.ip(ctx, place, link); err != nil {
		return err
	}
	if err := l.ip(ctx, internet, uplink...); err != nil {
		return err
	}
	return l.ip(ctx, place, l.publicAddress(device, leg.addr)...)
}

// lanAddress gives a machine's LAN interface its address, and the routes that
// go with it.
func lanAddress(loc *Location, n *Node) []string {
	subnet, dev := loc.Subnets[n.Subnet], n.lanInterface()
	lines := []string{
		fmt.Sprintf("addr add %s/%d dev %s", n.LAN, subnet.Bits(), dev),
		fmt.Sprintf("link set %s up", dev),
	}
	for i, other := range loc.Subnets {
		if i != n.Subnet {
			lines = append(lines, fmt.Sprintf("route add %s via %s dev %s", other, lastHost(subnet), dev))
		}
	}
	if !n.Public {
		lines = append(lines, fmt.Sprintf("route add default via %s dev %s", lastHost(subnet), dev))
	}
	return lines
}

// publicAddress gives a device on the internet its address, and the routes that
// go with it.
func (l *Lab) publicAddress(device string, addr netip.Addr) []string {
	gateway := l.Spec.internetAddr()
	var lines []string
	if l.Spec.RoutedInternet {
		lines = []string{
			fmt.Sprintf("addr add %s/32 dev %s", addr, device),
			fmt.Sprintf("link set %s up", device),
			fmt.Sprintf("route add %s dev %s scope link", gateway, device),
		}
	} else {
		lines = []string{
			fmt.Sprintf("addr add %s/%d dev %s", addr, l.Spec.Internet.Bits(), device),
			fmt.Sprintf("link set %s up", device),
		}
	}
	return append(lines, fmt.Sprintf("route add default via %s dev %s", gateway, device))
}

// routeToLeg is the routed internet's route to a place's address.
func (l *Lab) routeToLeg(place string, addr netip.Addr) string {
	return fmt.Sprintf("route add %s dev %s src %s", addr, place, l.Spec.internetAddr())
}

// cable is the internet's port towards that of another lab.
const cable = "cable"

// Connect joins the internets of two labs, whose addresses must differ: routers and
// public legs of one reach those of the other, and private addresses lead nowhere,
// as before. The one that goes down first takes the cable along.
func Connect(ctx context.Context, a, b *Lab) error {
	if a.Spec.Internet.Overlaps(b.Spec.Internet) {
		return fmt.Errorf("connect labs %s and %s: their internets %s and %s overlap: give one of them another", a.Name, b.Name, a.Spec.Internet, b.Spec.Internet)
	}
	pid, err := b.holderOf(internet)
	if err != nil {
		return err
	}
	mtu := min(a.Spec.MTU, b.Spec.MTU)
	if err := a.ip(ctx, internet, fmt.Sprintf("link add name %[1]s mtu %[2]d type veth peer name %[1]s mtu %[2]d netns %[3]d", cable, mtu, pid)); err != nil {
		return err
	}
	for _, end := range []struct{ here, there *Lab }{{a, b}, {b, a}} {
		if err := end.here.ip(ctx, internet, fmt.Sprintf("link set %s up", cable)); err != nil {
			return err
		}
	}
	for _, end := range []struct{ here, there *Lab }{{a, b}, {b, a}} {
		if err := end.here.routeToInternet(ctx, end.there); err != nil {
			return err
		}
	}
	return nil
}

// routeToInternet makes a lab's internet forward to that of another, and nothing
// else that it did not forward before.
func (l *Lab) routeToInternet(ctx context.Context, other *Lab) error {
	if err := l.ip(ctx, internet, fmt.Sprintf("route add %s via %s dev %s onlink src %s",
		other.Spec.Internet, other.Spec.internetAddr(), cable, l.Spec.internetAddr())); err != nil {
		return err
	}
	pid, err := l.holderOf(internet)
	if err != nil {
		return err
	}
	if _, err := l.runAt(ctx, internet, pid, "echo 1 >/proc/sys/net/ipv4/ip_forward"); err != nil {
		return err
	}
	return l.nft(ctx, internet, fmt.Sprintf(`
		table ip cable {
			chain forward {
				type filter hook forward priority filter;
				ip saddr != { %[1]s, %[2]s } drop
				ip daddr != { %[1]s, %[2]s } drop
			}
		}
	`, l.Spec.Internet, other.Spec.Internet))
}

// unplug takes a machine's links away, at both ends at once.
func (l *Lab) unplug(ctx context.Context, loc *Location, n *Node) error {
	if n.Public {
		if err := l.ip(ctx, internet, "link delete "+n.Name); err != nil {
			return err
		}
	}
	if n.LAN.IsValid() {
		return l.ip(ctx, routerName(loc), "link delete "+n.Name)
	}
	return nil
}

type leg struct {
	addr netip.Addr
	mtu  int
}
