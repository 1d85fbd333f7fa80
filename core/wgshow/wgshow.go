// Package wgshow prints WireGuard devices as the command wg does, without their
// secrets. Print is pure: it is given the devices and the time.
package wgshow

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const usage = `usage: wg show [INTERFACE | all | interfaces] [FIELD]

Reads and never writes. Fields: public-key, listen-port, fwmark, peers, endpoints,
allowed-ips, latest-handshakes, transfer, persistent-keepalive; no secrets`

// Print prints what "wg ARGS" is to print of these devices ("show", "kilo0", "peers"). An error says
// what is not to be had.
func Print(devices []*wgtypes.Device, args []string, now time.Time, out io.Writer) error {
	if len(args) > 0 && args[0] != "show" {
		if slices.Contains([]string{"-h", "--help", "help"}, args[0]) {
			_, err := fmt.Fprintln(out, usage)
			return err
		}
		return fmt.Errorf("wg %s: kg answers to \"wg show\" only, since the agent configures the device\n%s", args[0], usage)
	}
	if len(args) > 0 {
		args = args[1:]
	}
	if len(args) > 2 {
		return errors.New(usage)
	}
	which, field := "all", ""
	if len(args) > 0 {
		which = args[0]
	}
	if len(args) > 1 {
		field = args[1]
	}
	if which == "interfaces" {
		names := make([]string, len(devices))
		for i, d := range devices {
			names[i] = d.Name
		}
		_, err := fmt.Fprintln(out, strings.Join(names, " "))
		return err
	}
	if which != "all" {
		devices = slices.DeleteFunc(slices.Clone(devices), func(d *wgtypes.Device) bool { return d.Name != which })
		if len(devices) == 0 {
			return fmt.Errorf("wg show %s: there is no WireGuard interface of that name", which)
		}
	}
	var text strings.Builder
	for i, d := range devices {
		if field != "" {
			prefix := ""
			if which == "all" {
				prefix = d.Name + "\t"
			}
			lines, err := fields(d, field)
			if err != nil {
				return err
			}
			for _, line := range lines {
				text.WriteString(prefix + line + "\n")
			}
			continue
		}
		if i > 0 {
			text.WriteByte('\n')
		}
		device(&text, d, now)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func device(out *strings.Builder, d *wgtypes.Device, now time.Time) {
	line := func(name, value string) { fmt.Fprintf(out, "  %s: %s\n", name, value) }
	fmt.Fprintf(out, "interface: %s\n", d.Name)
	if d.PrivateKey != (wgtypes.Key{}) {
		line("public key", d.PublicKey.String())
		line("private key", "(hidden)")
	}
	if d.ListenPort != 0 {
		line("listening port", strconv.Itoa(d.ListenPort))
	}
	if d.FirewallMark != 0 {
		line("fwmark", fmt.Sprintf("%#x", d.FirewallMark))
	}
	// Who was heard last comes first, as wg has it. Devices name equals in any order.
	peers := slices.Clone(d.Peers)
	slices.SortFunc(peers, func(a, b wgtypes.Peer) int {
		return cmp.Or(b.LastHandshakeTime.Compare(a.LastHandshakeTime), bytes.Compare(a.PublicKey[:], b.PublicKey[:]))
	})
	for i := range peers {
		p := &peers[i]
		fmt.Fprintf(out, "\npeer: %s\n", p.PublicKey)
		if p.PresharedKey != (wgtypes.Key{}) {
			line("preshared key", "(hidden)")
		}
		if p.Endpoint != nil {
			line("endpoint", p.Endpoint.String())
		}
		line("allowed ips", cmp.Or(allowedIPs(p, ", "), "(none)"))
		if !p.LastHandshakeTime.IsZero() {
			line("latest handshake", ago(now.Sub(p.LastHandshakeTime)))
		}
		if p.ReceiveBytes > 0 || p.TransmitBytes > 0 {
			line("transfer", fmt.Sprintf("%s received, %s sent", bytesText(p.ReceiveBytes), bytesText(p.TransmitBytes)))
		}
		if p.PersistentKeepaliveInterval > 0 {
			line("persistent keepalive", "every "+span(p.PersistentKeepaliveInterval))
		}
	}
}

// fields is what scripts ask for: a line for the device, or one a peer.
func fields(d *wgtypes.Device, field string) ([]string, error) {
	mark := func(n int) string {
		if n == 0 {
			return "off"
		}
		return fmt.Sprintf("%#x", n)
	}
	switch field {
	case "public-key":
		return []string{d.PublicKey.String()}, nil
	case "listen-port":
		return []string{strconv.Itoa(d.ListenPort)}, nil
	case "fwmark":
		return []string{mark(d.FirewallMark)}, nil
	case "private-key", "preshared-keys", "dump":
		return nil, fmt.Errorf("wg show %s %s: kg shows no secrets", d.Name, field)
	}
	of := map[string]func(p *wgtypes.Peer) string{
		"peers": func(*wgtypes.Peer) string { return "" },
		"endpoints": func(p *wgtypes.Peer) string {
			if p.Endpoint == nil {
				return "(none)"
			}
			return p.Endpoint.String()
		},
		"allowed-ips": func(p *wgtypes.Peer) string { return cmp.Or(allowedIPs(p, " "), "(none)") },
		"latest-handshakes": func(p *wgtypes.Peer) string {
			if p.LastHandshakeTime.IsZero() {
				return "0"
			}
			return strconv.FormatInt(p.LastHandshakeTime.Unix(), 10)
		},
		"transfer": func(p *wgtypes.Peer) string { return fmt.Sprintf("%d\t%d", p.ReceiveBytes, p.TransmitBytes) },
		"persistent-keepalive": func(p *wgtypes.Peer) string {
			if p.PersistentKeepaliveInterval == 0 {
				return "off"
			}
			return strconv.Itoa(int(p.PersistentKeepaliveInterval / time.Second))
		},
	}[field]
	if of == nil {
		return nil, fmt.Errorf("wg show %s %s: no such field\n%s", d.Name, field, usage)
	}
	lines := make([]string, len(d.Peers))
	for i := range d.Peers {
		p := &d.Peers[i]
		lines[i] = strings.TrimSuffix(p.PublicKey.String()+"\t"+of(p), "\t")
	}
	return lines, nil
}

func allowedIPs(p *wgtypes.Peer, between string) string {
	words := make([]string, len(p.AllowedIPs))
	for i := range p.AllowedIPs {
		words[i] = p.AllowedIPs[i].String()
	}
	return strings.Join(words, between)
}

func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "(the clock has gone backwards)"
	case d < time.Second:
		return "Now"
	}
	return span(d) + " ago"
}

// span is a time in words: 1 minute, 5 seconds.
func span(d time.Duration) string {
	left := int64(d / time.Second)
	var words []string
	for _, unit := range []struct {
		name    string
		seconds int64
	}{{"year", 365 * 86400}, {"day", 86400}, {"hour", 3600}, {"minute", 60}, {"second", 1}} {
		n := left / unit.seconds
		left %= unit.seconds
		switch {
		case n == 1:
			words = append(words, "1 "+unit.name)
		case n > 1:
			words = append(words, fmt.Sprintf("%d %ss", n, unit.name))
		}
	}
	return strings.Join(words, ", ")
}

func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB"} {
		if f /= 1024; f < 1024 {
			return fmt.Sprintf("%.2f %s", f, unit)
		}
	}
	return fmt.Sprintf("%.2f TiB", f/1024)
}
