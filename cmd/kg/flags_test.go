package main

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/kilo-overlay/kilo/core/model"
)

func TestDefaults(t *testing.T) {
	o, err := parse([]string{"--hostname=e1"}, func(string) string { return "" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := o.settings()
	if o.iface != "kilo0" || s.Port != 51820 || s.Granularity != model.PerLocation || o.adapter.value != "auto" || o.wireguard.value != "auto" ||
		o.subnets.String() != "10.4.0.0/16" || o.gateways != 2 || o.resync != 30*time.Second || o.mtu != 0 || o.stateDir != "/var/lib/kilo" ||
		o.cleanUp || !o.createInterface || o.topologyLabel != "topology.kubernetes.io/region" || netip.AddrPort(o.listen).IsValid() {
		t.Errorf("defaults: %+v", o)
	}
}

// Every value that cannot be meant is refused by a sentence that names flag and
// value.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ flag, value, why string }{
		{"port", "0", "1 to 65535"},
		{"port", "65536", "1 to 65535"},
		{"port", "wireguard", "1 to 65535"},
		{"mtu", "68", "576 to 65455"},
		{"mtu", "-80", "576 to 65455"},
		{"mtu", "65456", "576 to 65455"},
		{"mtu", "Auto", "auto"},
		{"adapter", "calico", "auto, flannel, cilium"},
		{"compatibility", "kube-router", "auto, flannel, cilium"},
		{"mesh-granularity", "node", "location, cross, full"},
		{"encapsulate", "sometimes", "always, crosssubnet, never"},
		{"wireguard", "boringtun", "auto, kernel, userspace"},
		{"log-level", "verbose", "all, debug, info"},
		{"cni", "true", "only false"},
		{"local", "true", "only false"},
		{"cni", "no", "only false"},
		{"subnet", "10.4.0.1/16", "10.4.0.0/16"},
		{"subnet", "10.4.0.0/16,10.5.0.0/16", "one family"},
		{"subnet", "10.4", "no prefix"},
		{"subnet", "0.0.0.0/0", "private network"},
		{"subnet", "127.0.0.0/8", "private network"},
		{"subnet", "ff00::/8", "private network"},
		{"port", "65535", "at most 65534"},
		{"failover-port", "51821", "51820 to 51821"},
		{"service-cidr", "10.96.0.0/12,::ffff:10.0.0.0/112", "write it as IPv4"},
		{"exclude-cidrs", "fe80::1%eth0", "zone"},
		{"force-endpoint", "203.0.113.9", "host:port"},
		{"force-endpoint", "203.0.113.9:0", "port 0"},
		{"force-endpoint", "127.0.0.1:51820", "nobody else"},
		{"force-endpoint", "[fe80::1]:51820", "nobody else"},
		{"force-endpoint", "203.0.113.999:51820", "host:port"},
		{"force-endpoint", "gw_1.example.org:51820", "host:port"},
		{"force-endpoint", "gw.example.org:99999", "host:port"},
		{"force-internal-ip", "10.0.0.1/24,10.0.0.2/24", "one family"},
		{"force-internal-ip", "127.0.0.1/8", "no other node"},
		{"force-internal-ip", "10.0.0", "length of its subnet"},
		{"persistent-keepalive", "65536", "0 (off) to 65535"},
		{"persistent-keepalive", "10s", "seconds"},
		{"listen", "1107", "address:port"},
		{"listen", "localhost:1107", "address:port"},
		{"listen", ":0", "address:port"},
		{"gateways", "0", "1 to 4"},
		{"gateways", "two", "two"},
		{"resync-period", "10ms", "a second or more"},
		{"interface", "a-name-that-is-too-long", "15 characters"},
		{"interface", "kilo*", "'*'"},
		{"interface", "", "15 characters"},
		{"topology-label", "", "label"},
		{"clean-up-interface", "true", "--clean-up"},
	} {
		for _, way := range []string{"flag", "environment"} {
			if way == "environment" && c.value == "" {
				continue // an empty variable is none
			}
			t.Run(c.flag+"="+c.value+" by "+way, func(t *testing.T) {
				args, env := []string{"--hostname=e1", "--" + c.flag + "=" + c.value}, map[string]string{}
				if way == "environment" {
					args, env[variable(c.flag)] = args[:1], c.value
				}
				_, err := parse(args, func(name string) string { return env[name] }, io.Discard)
				if err == nil {
					t.Fatal("accepted")
				}
				for _, part := range []string{c.flag, c.why} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q does not say %q", err, part)
					}
				}
			})
		}
	}
}

func TestAccepted(t *testing.T) {
	args := strings.Fields(`--hostname=e1 --cni=false --local=false --cni-path=/etc/cni/net.d/10-kilo.conflist --compatibility=flannel
		--subnet=10.5.0.0/16 --subnet=fd00:4::/64 --service-cidr=10.96.0.0/12,fd00:96::/112 --force-endpoint=gw.example.org:51821
		--force-internal-ip=10.0.0.1/24,fd00::1/64 --persistent-keepalive=25 --allowed-location-ips=192.0.2.10,192.0.2.0/28 --listen=:1107
		--mtu=1400 --port=51821 --exclude-interfaces=wlan0,ib* --leader --location=edge --log-level=all --clean-up --clean-up-interface`)
	o, err := parse(args, func(string) string { return "" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := o.settings()
	if o.adapter.value != "flannel" || o.subnets.String() != "10.5.0.0/16,fd00:4::/64" || o.serviceCIDRs.String() != "10.96.0.0/12,fd00:96::/112" {
		t.Errorf("adapter %s, subnets %s, services %s", o.adapter.value, &o.subnets, &o.serviceCIDRs)
	}
	if s.ForceEndpoint != (model.Endpoint{Host: "gw.example.org", Port: 51821}) || s.Keepalive != 25*time.Second || !s.Leader || s.Location != "edge" ||
		!reflect.DeepEqual(s.AllowedLocationIPs, []netip.Prefix{netip.MustParsePrefix("192.0.2.10/32"), netip.MustParsePrefix("192.0.2.0/28")}) ||
		!reflect.DeepEqual(s.ForceInternalIPs, []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")}) {
		t.Errorf("settings %+v", s)
	}
	if netip.AddrPort(o.listen) != netip.MustParseAddrPort("[::]:1107") || o.mtu != 1400 {
		t.Errorf("listen %s, mtu %s", &o.listen, &o.mtu)
	}
	if o, err := parse([]string{"--hostname=e1", "--force-internal-ip=-"}, func(string) string { return "" }, io.Discard); err != nil || !o.settings().NoInternalIP {
		t.Errorf("--force-internal-ip=-: %v", err)
	}
}

// A flag wins over its variable, the variable over the default; Kilo's
// manifests name the node by NODE_NAME.
func TestEnvironment(t *testing.T) {
	env := map[string]string{"KILO_PORT": "1111", "KILO_MTU": "1300", "NODE_NAME": "from-the-pod", "KILO_COMPATIBILITY": "flannel", "KILO_LEADER": "true"}
	o, err := parse([]string{"--port=2222"}, func(name string) string { return env[name] }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.port != 2222 || o.mtu != 1300 || o.hostname != "from-the-pod" || o.adapter.value != "flannel" || !o.leader {
		t.Errorf("port %d, mtu %d, hostname %s, adapter %s, leader %v", o.port, o.mtu, o.hostname, o.adapter.value, o.leader)
	}
	env["KILO_HOSTNAME"] = "named"
	env["KILO_COMPATIBILITY"] = "nonsense" // the flag of the other name was given
	o, err = parse([]string{"--adapter=auto"}, func(name string) string { return env[name] }, io.Discard)
	if err != nil || o.hostname != "named" || o.adapter.value != "auto" {
		t.Errorf("hostname %v, error %v", o, err)
	}
}

func TestSubnetApartFromServices(t *testing.T) {
	_, err := parse([]string{"--subnet=10.96.4.0/24", "--service-cidr=10.96.0.0/12"}, func(string) string { return "" }, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "10.96.4.0/24") || !strings.Contains(err.Error(), "10.96.0.0/12") {
		t.Errorf("error %v; want one that names both", err)
	}
}

// The flags of the design are all there, each with a description.
func TestEveryFlagIsDescribed(t *testing.T) {
	promised := strings.Fields(`kubeconfig master hostname interface port mtu mesh-granularity subnet service-cidr internal-cidr topology-label
		encapsulate create-interface failover-port clean-up clean-up-interface prioritise-private-addresses resync-period iptables-forward-rules listen
		log-level version adapter compatibility wireguard cni local cni-path gateways exclude-interfaces exclude-cidrs public-cidrs
		location force-endpoint force-internal-ip leader persistent-keepalive allowed-location-ips state-dir`)
	fs := (&options{}).flags()
	for _, name := range promised {
		if fs.Lookup(name) == nil {
			t.Errorf("--%s is missing", name)
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if len(f.Usage) < 10 {
			t.Errorf("--%s is described as %q", f.Name, f.Usage)
		}
	})
	var help bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, os.Getenv, &help, io.Discard); err != nil || !strings.Contains(help.String(), "kg uninstall") {
		t.Errorf("--help: %v, %q", err, help.String())
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}, {"--version", "--hostname=x"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, func(string) string { return "" }, &out, io.Discard); err != nil || strings.TrimSpace(out.String()) == "" {
			t.Errorf("kg %s: %v, %q", args, err, out.String())
		}
	}
	if err := run(t.Context(), []string{"instal"}, func(string) string { return "" }, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), `"instal"`) {
		t.Errorf("a word that is no command: %v", err)
	}
}
