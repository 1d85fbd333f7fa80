package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// Host tells what this node's kernel says about the node itself. Addresses
// that are about to vanish or not usable yet (temporary, deprecated,
// tentative ones of IPv6), and ours on the loopback link, are left out.
func (k *Kernel) Host(context.Context) (model.Host, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return model.Host{}, fmt.Errorf("list interfaces: %w", err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return model.Host{}, fmt.Errorf("list addresses: %w", err)
	}
	var h model.Host
	names := names{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		h.Interfaces = append(h.Interfaces, model.Interface{
			Index: a.Index, Name: a.Name, Kind: linkKind(l), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0})
	}
	slices.SortFunc(h.Interfaces, func(a, b model.Interface) int { return cmp.Compare(a.Index, b.Index) })
	for _, a := range addrs {
		if a.Label == state.LoopbackLabel {
			continue // where the mesh is, not where the node is
		}
		// In IPv4 the bit for temporary means secondary.
		if a.IP.To4() == nil && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			continue
		}
		i := slices.IndexFunc(h.Interfaces, func(i model.Interface) bool { return i.Index == a.LinkIndex })
		if p, ok := prefix(a.IPNet); ok && i >= 0 {
			h.Interfaces[i].Addresses = append(h.Interfaces[i].Addresses, p)
		}
	}
	for i := range h.Interfaces {
		if l := &h.Interfaces[i]; len(l.Addresses) > 0 {
			// Read only here: most links are the CNI's, one a pod, and have none.
			l.RPFilter, _ = RPFilter(l.Name)
		}
	}
	h.DefaultDevices, err = k.defaultDevices(names)
	return h, err
}

// linkKind is the rtnl link kind, "" for hardware.
func linkKind(l netlink.Link) string {
	switch t := l.Type(); t {
	case "device":
		return ""
	case "tuntap":
		return "tun"
	default:
		return t
	}
}

// defaultDevices lists the interfaces of main's default routes, best metric
// first, IPv4 before IPv6 of the same metric.
func (k *Kernel) defaultDevices(names names) ([]string, error) {
	type way struct {
		metric, index int
	}
	var ways []way
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := k.dumpMain(family)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if p, ok := prefix(r.Dst); !ok || p.Bits() != 0 {
				continue
			}
			if r.LinkIndex != 0 {
				ways = append(ways, way{r.Priority, r.LinkIndex})
			}
			for _, n := range r.MultiPath {
				ways = append(ways, way{r.Priority, n.LinkIndex})
			}
		}
	}
	slices.SortStableFunc(ways, func(a, b way) int { return cmp.Compare(a.metric, b.metric) })
	var devices []string
	for _, w := range ways {
		if name := names[w.index]; name != "" && !slices.Contains(devices, name) {
			devices = append(devices, name)
		}
	}
	return devices, nil
}

// Sysctl reads one of this network namespace's settings by its path below
// /proc/sys ("net/ipv4/ip_forward"). Nothing here ever writes one.
func Sysctl(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys", path))
	return strings.TrimSpace(string(b)), err
}

// Forwarding tells whether the node forwards IPv4 packets between interfaces;
// a gateway has to.
func Forwarding() (bool, error) {
	v, err := Sysctl("net/ipv4/ip_forward")
	return v == "1", err
}

// RPFilter returns the reverse path filter that holds for an interface: 0 off,
// 1 strict, 2 loose. The kernel takes the larger of its own and "all".
func RPFilter(device string) (int, error) {
	all, err := sysctlNumber("net/ipv4/conf/all/rp_filter")
	own, err2 := sysctlNumber("net/ipv4/conf/" + device + "/rp_filter")
	return max(all, own), errors.Join(err, err2)
}

func sysctlNumber(path string) (int, error) {
	v, err := Sysctl(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(v)
}
