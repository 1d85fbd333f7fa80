package flannel

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// subnetEnv is what flanneld writes into subnet.env: lines of KEY=VALUE,
// prefixes separated by commas.
type subnetEnv struct {
	// Networks are the pod networks of the whole cluster.
	Networks []netip.Prefix
	// Subnets are this node's pod prefixes.
	Subnets []netip.Prefix
	// MTU is what pods get, in bytes; 0: not said.
	MTU int
}

// parseSubnetEnv reads a subnet.env. Keys that it does not know are left
// alone. An error says which line is wrong.
func parseSubnetEnv(text string) (subnetEnv, error) {
	var e subnetEnv
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		if !found {
			return subnetEnv{}, fmt.Errorf("line %d: want KEY=VALUE, got %q", n, line)
		}
		key = strings.TrimSpace(strings.TrimPrefix(key, "export "))
		value = unquote(strings.TrimSpace(value))
		var err error
		switch key {
		case "FLANNEL_NETWORK":
			e.Networks, err = appendPrefixes(e.Networks, value, true)
		case "FLANNEL_IPV6_NETWORK":
			e.Networks, err = appendPrefixes(e.Networks, value, false)
		case "FLANNEL_SUBNET":
			e.Subnets, err = appendPrefixes(e.Subnets, value, true)
		case "FLANNEL_IPV6_SUBNET":
			e.Subnets, err = appendPrefixes(e.Subnets, value, false)
		case "FLANNEL_MTU":
			e.MTU, err = parseMTU(value)
		}
		if err != nil {
			return subnetEnv{}, fmt.Errorf("line %d: %s=%s: %w", n, key, value, err)
		}
	}
	if len(e.Subnets) == 0 {
		return subnetEnv{}, errors.New("neither FLANNEL_SUBNET nor FLANNEL_IPV6_SUBNET is there")
	}
	for _, s := range e.Subnets {
		if !within(s, e.Networks) {
			return subnetEnv{}, fmt.Errorf("subnet %s lies in no network (FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK): %v", s, e.Networks)
		}
	}
	return e, nil
}

// appendPrefixes adds the prefixes of a comma-separated list, without host
// bits: FLANNEL_SUBNET names the bridge's address in the node's prefix.
func appendPrefixes(to []netip.Prefix, list string, v4 bool) ([]netip.Prefix, error) {
	for item := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("want prefixes such as 10.244.1.0/24: %w", err)
		}
		if p.Addr().Is4() != v4 {
			return nil, fmt.Errorf("%s is of the wrong address family", p)
		}
		to = append(to, p.Masked())
	}
	return to, nil
}

// parseMTU reads an MTU. 68 bytes is the least that IPv4 works with.
func parseMTU(s string) (int, error) {
	mtu, err := strconv.Atoi(s)
	if err != nil || mtu < 68 || mtu > 65536 {
		return 0, fmt.Errorf("want a number of bytes from 68 to 65536")
	}
	return mtu, nil
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}
