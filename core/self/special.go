package self

import "net/netip"

// specialV4 and specialV6 are the prefixes that are not globally reachable
// according to the IANA IPv4 and IPv6 Special-Purpose Address Registries
// (RFC 6890 and its updates), multicast added.
var (
	specialV4 = prefixes(
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	)
	specialV6 = prefixes(
		"::/128", "::1/128", "::ffff:0:0/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32",
		"3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	)
	privateRanges = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// Public tells whether an address is globally reachable by the IANA registries.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsValid() {
		return false
	}
	if a.Is4() {
		return !within(specialV4, a)
	}
	return !within(specialV6, a)
}

// private tells whether an address is one that networks use inside: RFC 1918,
// RFC 6598 (carrier-grade NAT) and RFC 4193.
func private(a netip.Addr) bool { return within(privateRanges, a.Unmap()) }
