package wgshow_test

import (
	"bytes"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/wgshow"
	"github.com/kilo-overlay/kilo/core/wireguard"
)

func TestMain(m *testing.M) { nstest.Main(m, nil) }

func show(args []string, out *bytes.Buffer) error {
	devices, err := kernel.Devices()
	if err != nil {
		return err
	}
	return wgshow.Print(devices, args, time.Now(), out)
}

func mustNet(t *testing.T, s string) net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	return *n
}

// sorted puts peers, and lines of single fields, in an order: a device names them
// in any.
func sorted(text string) string {
	between := "\n"
	if strings.Contains(text, "interface:") {
		between = "\n\n"
	}
	parts := strings.Split(strings.TrimSpace(text), between)
	slices.Sort(parts)
	return strings.Join(parts, between)
}

// For a real device kg says, word for word, what wg says.
func TestShowIsWhatWGShows(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		link, err := wireguard.Ensure(t.Context(), wireguard.Options{Interface: "kilo0", Mode: wireguard.Userspace})
		if err != nil {
			t.Fatal(err)
		}
		defer link.Close()
		c, err := wgctrl.New()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		key := func() wgtypes.Key {
			k, err := wgtypes.GeneratePrivateKey()
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		private, psk, port, mark, keepalive := key(), key(), 51820, 0x1000, 85*time.Second
		if err := c.ConfigureDevice("kilo0", wgtypes.Config{
			PrivateKey: &private, ListenPort: &port, FirewallMark: &mark,
			Peers: []wgtypes.PeerConfig{
				{PublicKey: key().PublicKey(), PresharedKey: &psk, Endpoint: &net.UDPAddr{IP: net.IPv4(198, 51, 100, 1), Port: 51820},
					PersistentKeepaliveInterval: &keepalive,
					AllowedIPs:                  []net.IPNet{mustNet(t, "10.244.1.0/24"), mustNet(t, "10.4.0.1/32"), mustNet(t, "fd00::/64")}},
				{PublicKey: key().PublicKey(), Endpoint: &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 7}},
			},
		}); err != nil {
			t.Fatal(err)
		}
		for _, args := range []string{
			"", "show", "show all", "show kilo0", "show interfaces",
			"show kilo0 public-key", "show kilo0 listen-port", "show kilo0 fwmark", "show kilo0 peers", "show kilo0 endpoints",
			"show kilo0 allowed-ips", "show kilo0 latest-handshakes", "show kilo0 transfer", "show kilo0 persistent-keepalive",
			"show all public-key",
		} {
			real := exec.Command("wg", strings.Fields(args)...)
			real.Env = []string{"WG_COLOR_MODE=never"}
			want, err := real.CombinedOutput()
			if err != nil {
				t.Fatalf("wg %s: %v: %s", args, err, want)
			}
			var got bytes.Buffer
			if err := show(strings.Fields(args), &got); err != nil {
				t.Errorf("wg %s: %v", args, err)
			} else if sorted(got.String()) != sorted(string(want)) {
				t.Errorf("wg %s: got\n%s\nwant\n%s", args, got.String(), want)
			}
		}
		var got bytes.Buffer
		for _, args := range []string{"show kilo0 private-key", "show kilo0 preshared-keys", "show all dump", "set kilo0 private-key /dev/null", "showconf kilo0", "genkey"} {
			if err := show(strings.Fields(args), &got); err == nil {
				t.Errorf("wg %s: want an error", args)
			}
		}
		_ = show(nil, &got)
		for _, secret := range []wgtypes.Key{private, psk} {
			if strings.Contains(got.String(), secret.String()) {
				t.Error("a secret was printed")
			}
		}
	}, "wg")
}

// Handshakes and bytes, which a device without a far side has none of.
func TestShowTimesAndBytes(t *testing.T) {
	now := time.Unix(2_000_000_000, 0)
	late, early := wgtypes.Key{1}, wgtypes.Key{2}
	d := &wgtypes.Device{Name: "kilo0", PrivateKey: wgtypes.Key{9}, PublicKey: wgtypes.Key{8}, Peers: []wgtypes.Peer{
		{PublicKey: early, LastHandshakeTime: now.Add(-(26*time.Hour + 61*time.Second)), ReceiveBytes: 1023, TransmitBytes: 1536},
		{PublicKey: late, LastHandshakeTime: now.Add(-65 * time.Second), ReceiveBytes: 5 << 30, TransmitBytes: 3 << 40, PersistentKeepaliveInterval: 25 * time.Second},
	}}
	var got strings.Builder
	if err := wgshow.Print([]*wgtypes.Device{d}, []string{"show"}, now, &got); err != nil {
		t.Fatal(err)
	}
	want := `interface: kilo0
  public key: ` + d.PublicKey.String() + `
  private key: (hidden)

peer: ` + late.String() + `
  allowed ips: (none)
  latest handshake: 1 minute, 5 seconds ago
  transfer: 5.00 GiB received, 3.00 TiB sent
  persistent keepalive: every 25 seconds

peer: ` + early.String() + `
  allowed ips: (none)
  latest handshake: 1 day, 2 hours, 1 minute, 1 second ago
  transfer: 1023 B received, 1.50 KiB sent
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
