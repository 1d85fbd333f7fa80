package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
)

// TC39: the link is as large as the interface that carries it allows.
func TestTunnelMTU(t *testing.T) {
	link := func(name string, mtu int, addresses ...string) model.Interface {
		l := model.Interface{Name: name, MTU: mtu, Up: true}
		for _, a := range addresses {
			l.Addresses = append(l.Addresses, netip.MustParsePrefix(a))
		}
		return l
	}
	for name, c := range map[string]struct {
		host     model.Host
		endpoint string
		want     int
		refused  string
	}{
		"Ethernet":    {host: model.Host{Interfaces: []model.Interface{link("eth0", 1500, "10.0.0.1/24")}, DefaultDevices: []string{"eth0"}}, want: 1420},
		"cloud, 1400": {host: model.Host{Interfaces: []model.Interface{link("ens4", 1400, "10.0.0.1/24")}, DefaultDevices: []string{"ens4"}}, want: 1320},
		"two uplinks, the smaller one carries the tunnel": {
			host:     model.Host{Interfaces: []model.Interface{link("eth0", 1500, "10.0.0.1/24"), link("eth1", 1400, "203.0.113.7/24")}, DefaultDevices: []string{"eth0"}},
			endpoint: "203.0.113.7", want: 1320},
		"two default routes": {
			host: model.Host{Interfaces: []model.Interface{link("eth0", 1500), link("wwan0", 1430)}, DefaultDevices: []string{"eth0", "wwan0"}}, want: 1350},
		"an interface that carries nothing does not count": {
			host: model.Host{Interfaces: []model.Interface{link("eth0", 1500), link("lo", 65536), link("usb0", 1280, "10.9.0.1/24")}, DefaultDevices: []string{"eth0"}}, want: 1420},
		"no default route: the LAN": {host: model.Host{Interfaces: []model.Interface{link("eth0", 9000, "10.0.0.1/24"), link("docker0", 1500, "172.17.0.1/16")}}, want: 8920},
		"too small":                 {host: model.Host{Interfaces: []model.Interface{link("eth0", 68)}, DefaultDevices: []string{"eth0"}}, refused: "eth0 has an MTU of 68 bytes"},
		"just too small":            {host: model.Host{Interfaces: []model.Interface{link("eth0", 1359)}, DefaultDevices: []string{"eth0"}}, refused: "1279"},
		"just enough":               {host: model.Host{Interfaces: []model.Interface{link("eth0", 1360)}, DefaultDevices: []string{"eth0"}}, want: 1280},
		"nothing at all":            {host: model.Host{}, refused: "--mtu"},
	} {
		t.Run(name, func(t *testing.T) {
			var endpoint netip.Addr
			if c.endpoint != "" {
				endpoint = netip.MustParseAddr(c.endpoint)
			}
			got, err := TunnelMTU(c.host, endpoint, []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")})
			switch {
			case c.refused == "" && err != nil:
				t.Fatal(err)
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("error %v; want one that says %q", err, c.refused)
			case got != c.want:
				t.Errorf("MTU %d, want %d", got, c.want)
			}
		})
	}
}
