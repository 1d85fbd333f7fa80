package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// The functions of this file read one value that somebody typed. Their errors
// say what is wrong with the value and what would be right; the caller says
// where it stands.

// wrong makes an error about a value, which may be long or hold anything.
func wrong(value, what string) error { return fmt.Errorf("%s: %s", quote(value), what) }

func quote(value string) string {
	const most = 60
	if len(value) > most {
		return strconv.Quote(value[:most]) + "…"
	}
	return strconv.Quote(value)
}

// items splits a comma separated list and leaves out what is blank.
func items(list string) []string {
	var out []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// parseAddr reads an address that packets can be sent to.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, wrong(s, "not an IP address")
	}
	a = a.Unmap()
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.Addr{}, wrong(s, "not an address of one host")
	}
	return a, nil
}

// parseHost reads an address with the length of its subnet, "10.0.0.5/24"; the
// length may be left out and is then that of the address.
func parseHost(s string) (netip.Prefix, error) {
	text, length, found := strings.Cut(s, "/")
	a, err := parseAddr(text)
	if err != nil {
		return netip.Prefix{}, wrong(s, "not an address with a prefix length such as 10.0.0.5/24")
	}
	if !found {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(a.String() + "/" + length)
	if err != nil {
		return netip.Prefix{}, wrong(s, fmt.Sprintf("the prefix length must be a number up to %d", a.BitLen()))
	}
	return p, nil
}

// parsePrefix reads a prefix. Its host bits are cleared, as WireGuard does. An
// address alone is refused unless bare.
func parsePrefix(s string, bare bool) (netip.Prefix, error) {
	if bare && !strings.Contains(s, "/") {
		if a, err := parseAddr(s); err == nil {
			return netip.PrefixFrom(a, a.BitLen()), nil
		}
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return netip.Prefix{}, wrong(s, fmt.Sprintf("the prefix length is missing, %s/%d is one address", a, a.BitLen()))
		}
		return netip.Prefix{}, wrong(s, "not a prefix such as 192.0.2.0/24")
	}
	return p.Masked(), nil
}

// parsePrefixes reads a comma separated list of prefixes and addresses. It
// returns the good ones, sorted and each once, and an error about the others.
func parsePrefixes(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var bad []error
	for _, item := range items(list) {
		p, err := parsePrefix(item, true)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		out = append(out, p)
	}
	return sorted(out), few(bad)
}

// parseHosts reads a comma separated list of a node's addresses: at most one
// per family, IPv4 first.
func parseHosts(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var bad []error
	for _, item := range items(list) {
		p, err := parseHost(item)
		if err == nil && slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() }) {
			err = wrong(item, "a second address of one family, the first counts")
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		out = append(out, p)
	}
	return v4First(out), few(bad)
}

func v4First(hosts []netip.Prefix) []netip.Prefix {
	slices.SortStableFunc(hosts, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return hosts
}

// sorted orders prefixes by address, then by length, and drops repetitions.
func sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// few joins errors into one sentence that stays short.
func few(errs []error) error {
	const most = 3
	switch n := len(errs); {
	case n == 0:
		return nil
	case n > most:
		return fmt.Errorf("%w; and %d more", few(errs[:most]), n-most)
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// parseEndpoint reads host:port, where host is an IPv4 address, an IPv6
// address in brackets, or a DNS name.
func parseEndpoint(s string) (model.Endpoint, error) {
	host, port, err := net.SplitHostPort(strings.TrimSpace(s))
	if err != nil {
		return model.Endpoint{}, wrong(s, "want host:port such as 203.0.113.5:51820 or [2001:db8::5]:51820")
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return model.Endpoint{}, wrong(s, "the port must be a number from 1 to 65535")
	}
	e, err := makeEndpoint(host, n)
	if err != nil {
		return model.Endpoint{}, wrong(s, err.Error())
	}
	return e, nil
}

// makeEndpoint puts a host, an address or a DNS name, and a port together.
func makeEndpoint(host string, port int) (model.Endpoint, error) {
	if port < 1 || port > 65535 {
		return model.Endpoint{}, fmt.Errorf("the port must be a number from 1 to 65535, not %d", port)
	}
	e := model.Endpoint{Port: uint16(port)}
	if _, err := netip.ParseAddr(host); err == nil {
		a, err := parseAddr(host)
		if err != nil {
			return model.Endpoint{}, err
		}
		if a.IsLinkLocalUnicast() {
			return model.Endpoint{}, wrong(host, "a link-local address means something else on every node")
		}
		e.Addr = a
		return e, nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !isDNSName(host) {
		return model.Endpoint{}, wrong(host, "neither an IP address nor a DNS name")
	}
	e.Host = host
	return e, nil
}

// isDNSName tells whether s can be looked up: labels of letters, digits and
// inner hyphens. A last label of digits alone is a mistyped address.
func isDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
				return false
			}
		}
	}
	_, err := strconv.ParseUint(labels[len(labels)-1], 10, 64)
	return err != nil
}

// parseKeepalive reads whole seconds.
func parseKeepalive(s string) (time.Duration, error) {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		return 0, wrong(s, "want whole seconds from 0 to 65535 such as 25")
	}
	return makeKeepalive(n)
}

// makeKeepalive checks seconds against WireGuard's range.
func makeKeepalive(seconds int) (time.Duration, error) {
	if seconds < 0 || seconds > 65535 {
		return 0, fmt.Errorf("%d: want whole seconds from 0 to 65535 such as 25", seconds)
	}
	return time.Duration(seconds) * time.Second, nil
}

// udpAddr is the JSON form of a discovered endpoint that Kilo publishes.
type udpAddr struct {
	IP   netip.Addr
	Port uint16
	Zone string
}

// parseDiscovered reads discovered endpoints in Kilo's JSON form. It returns
// the good ones and an error about the others.
func parseDiscovered(s string) (map[model.Key]netip.AddrPort, error) {
	if s == "" {
		return nil, nil
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &entries); err != nil {
		return nil, wrong(s, `not JSON of the form {"KEY":{"IP":"203.0.113.5","Port":51820,"Zone":""}}`)
	}
	var bad []error
	out := make(map[model.Key]netip.AddrPort, len(entries))
	for text, raw := range entries {
		key, err := model.ParseKey(text)
		if err != nil || key.IsZero() {
			bad = append(bad, wrong(text, "not a public key"))
			continue
		}
		var u udpAddr
		if json.Unmarshal(raw, &u) != nil || u.Port == 0 {
			bad = append(bad, wrong(string(raw), `not an endpoint of the form {"IP":"203.0.113.5","Port":51820,"Zone":""}`))
			continue
		}
		a, err := parseAddr(u.IP.String())
		if err != nil {
			bad = append(bad, err)
			continue
		}
		out[key] = netip.AddrPortFrom(a, u.Port)
	}
	if len(out) == 0 {
		out = nil
	}
	slices.SortFunc(bad, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return out, few(bad)
}

// formatDiscovered writes discovered endpoints in Kilo's JSON form, sorted by
// key; "" for none.
func formatDiscovered(endpoints map[model.Key]netip.AddrPort) string {
	if len(endpoints) == 0 {
		return ""
	}
	entries := make(map[string]udpAddr, len(endpoints))
	for key, e := range endpoints {
		entries[key.String()] = udpAddr{IP: e.Addr().Unmap(), Port: e.Port()}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return "" // cannot be: every address has a text form
	}
	return string(text)
}

// join writes a comma separated list.
func join[T fmt.Stringer](list []T) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = item.String()
	}
	return strings.Join(texts, ",")
}
