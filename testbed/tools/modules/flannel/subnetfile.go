package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"strings"

	"github.com/flannel-io/flannel/pkg/ip"
)

// record is what a subnet file says about the run that wrote it. An empty
// prefix means that the file did not name it.
type record struct {
	network, subnet   ip.IP4Net
	network6, subnet6 ip.IP6Net
}

// readSubnetFile reads the file of an earlier run. A missing file is an empty
// record. On an error the record holds what could be read.
func readSubnetFile(path string) (record, error) {
	// Flannel compares IPv6 prefixes through this pointer, so it is never nil.
	none6 := ip.IP6Net{IP: (*ip.IP6)(new(big.Int))}
	r := record{network6: none6, subnet6: none6}

	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	var problems []error
	for line := range strings.Lines(string(content)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || !strings.HasSuffix(key, "NETWORK") && !strings.HasSuffix(key, "SUBNET") {
			continue
		}
		// FLANNEL_SUBNET carries the bridge's address; the prefix is meant.
		_, prefix, err := net.ParseCIDR(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s in %s: %w", key, path, err))
			continue
		}
		switch key {
		case "FLANNEL_NETWORK":
			r.network = ip.FromIPNet(prefix)
		case "FLANNEL_SUBNET":
			r.subnet = ip.FromIPNet(prefix)
		case "FLANNEL_IPV6_NETWORK":
			r.network6 = ip.FromIP6Net(prefix)
		case "FLANNEL_IPV6_SUBNET":
			r.subnet6 = ip.FromIP6Net(prefix)
		}
	}
	return r, errors.Join(problems...)
}
