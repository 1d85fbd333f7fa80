package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Whatever is given for a flag is taken or refused by a sentence that names the
// flag; what was taken can be used.
func FuzzFlags(f *testing.F) {
	var names []string
	(&options{}).flags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	for i := range names {
		for _, value := range []string{"", "-", "auto", "true", "0", "65535", "10s", "kilo0", "10.4.0.0/16,fd00:4::/64", "10.0.0.1/24", "192.0.2.10,192.0.2.0/28",
			"gw.example.org:51820", "[2001:db8::9]:51820", ":1107", "::ffff:10.0.0.1", "fe80::1%eth0", "0.0.0.0/0", "wlan0,ib*", `"a","b`} {
			f.Add(uint8(i), value)
		}
	}
	none := func(string) string { return "" }
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		name := names[int(which)%len(names)]
		o, err := parse([]string{"--hostname=e1", "--" + name + "=" + value}, none, io.Discard)
		if err != nil {
			if !strings.Contains(err.Error(), name) || len(err.Error()) > 2000+4*len(value) {
				t.Fatalf("--%s=%q: %q", name, value, err)
			}
			return
		}
		o.settings()
		for _, p := range o.subnets.prefixes {
			if !p.IsValid() || p != p.Masked() || !p.Addr().IsGlobalUnicast() || p.Bits() == 0 {
				t.Fatalf("--%s=%q: WireGuard addresses from %v", name, value, p)
			}
		}
		if e := o.forceEndpoint.Endpoint; !e.IsZero() && (e.Port == 0 || e.Host == "" && !e.Addr.IsValid()) {
			t.Fatalf("--%s=%q: endpoint %+v", name, value, e)
		}
		if e := o.forceEndpoint.Endpoint; !e.IsZero() {
			again := endpoint{}
			if err := again.Set(e.String()); err != nil || again.Endpoint != e {
				t.Fatalf("--%s=%q: endpoint %s is read back as %+v, %v", name, value, e, again, err)
			}
		}
		for _, p := range o.forceInternalIP.addresses {
			if !p.IsValid() || p.Addr().Is4In6() || !p.Addr().IsGlobalUnicast() {
				t.Fatalf("--%s=%q: internal address %v", name, value, p)
			}
		}
		if int(o.port)+o.gateways-1 > 65535 {
			t.Fatalf("--%s=%q: ports %d and %d more", name, value, o.port, o.gateways-1)
		}
	})
}
