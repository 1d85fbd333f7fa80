package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

func observeVXLAN(link *netlink.Vxlan, names names) (*state.VXLANConfig, error) {
	v := &state.VXLANConfig{
		ID:     uint32(link.VxlanId),
		Port:   uint16(link.Port),
		Device: names[link.VtepDevIndex],
		Local:  addr(link.SrcAddr),
	}
	entries, err := readRemotes(link)
	if err != nil {
		return v, err
	}
	// A neighbour and the forwarding entry of its MAC make a remote; half of
	// one is a remote that nobody wants, so it gets mended.
	used := map[string]bool{}
	for _, n := range entries.neighbours {
		mac := n.HardwareAddr.String()
		r := state.VXLANRemote{Inner: addr(n.IP), MAC: mac}
		for _, f := range entries.forwards {
			if f.HardwareAddr.String() == mac {
				r.Outer, used[mac] = addr(f.IP), true
			}
		}
		v.Remotes = append(v.Remotes, r)
	}
	for _, f := range entries.forwards {
		if mac := f.HardwareAddr.String(); !used[mac] {
			v.Remotes = append(v.Remotes, state.VXLANRemote{MAC: mac, Outer: addr(f.IP)})
		}
	}
	return v, nil
}

type remoteEntries struct{ neighbours, forwards []netlink.Neigh }

func readRemotes(link netlink.Link) (remoteEntries, error) {
	var e remoteEntries
	for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		list, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, family) })
		if err != nil {
			return e, fmt.Errorf("list neighbours and forwarding entries: %w", err)
		}
		for _, n := range list {
			switch {
			case n.State&netlink.NUD_PERMANENT == 0: // what the kernel learned
			case family == unix.AF_BRIDGE:
				e.forwards = append(e.forwards, n)
			default:
				e.neighbours = append(e.neighbours, n)
			}
		}
	}
	return e, nil
}

// makeVXLAN creates the link, or returns the one there is. What a VXLAN cannot
// change while it lives has to be right: state.Diff deletes it before.
func (k *Kernel) makeVXLAN(have netlink.Link, l state.Link) (netlink.Link, error) {
	device, err := netlink.LinkByName(l.VXLAN.Device)
	if isNotFound(err) {
		return nil, &missingLink{l.VXLAN.Device}
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", l.VXLAN.Device, err)
	}
	if have, ok := have.(*netlink.Vxlan); ok {
		if have.VxlanId != int(l.VXLAN.ID) || have.Port != int(l.VXLAN.Port) || have.VtepDevIndex != device.Attrs().Index || addr(have.SrcAddr) != l.VXLAN.Local {
			return nil, fmt.Errorf("VNI, port, device or local address of interface %s differ, and cannot be changed: delete it first", l.Name)
		}
		return have, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = l.Name, l.MTU
	err = netlink.LinkAdd(&netlink.Vxlan{
		LinkAttrs:    attrs,
		VxlanId:      int(l.VXLAN.ID),
		VtepDevIndex: device.Attrs().Index,
		SrcAddr:      l.VXLAN.Local.AsSlice(),
		Port:         int(l.VXLAN.Port),
		// What is not in the static entries leads nowhere.
		Learning: false,
	})
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}
	link, err := k.ourLink(l.Name)
	if err == nil && link == nil {
		err = &missingLink{l.Name}
	}
	return link, err
}

// setRemotes adds what is missing, then removes what is not wanted.
func setRemotes(link netlink.Link, remotes []state.VXLANRemote) error {
	have, err := readRemotes(link)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	wanted := map[string]bool{}
	key := func(n *netlink.Neigh) string {
		return fmt.Sprintf("%d %s %s", n.Family, addr(n.IP), n.HardwareAddr)
	}
	for _, r := range remotes {
		mac, err := net.ParseMAC(r.MAC)
		if err != nil {
			return fmt.Errorf("remote %s: %w", r.Inner, err)
		}
		family := unix.AF_INET
		if r.Inner.Is6() {
			family = unix.AF_INET6
		}
		for _, n := range []netlink.Neigh{
			{LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: r.Outer.AsSlice(), HardwareAddr: mac},
			{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: r.Inner.AsSlice(), HardwareAddr: mac},
		} {
			wanted[key(&n)] = true
			if err := netlink.NeighSet(&n); err != nil {
				return fmt.Errorf("remote %s lladdr %s dst %s: %w", r.Inner, r.MAC, r.Outer, err)
			}
		}
	}
	var stale []netlink.Neigh
	for _, n := range append(have.neighbours, have.forwards...) {
		if !wanted[key(&n)] {
			stale = append(stale, n)
		}
	}
	// What NeighSet replaced is gone already; asking again tells.
	now, err := readRemotes(link)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, n := range append(now.neighbours, now.forwards...) {
		there[key(&n)] = true
	}
	for _, n := range stale {
		if !there[key(&n)] {
			continue
		}
		if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete entry %s lladdr %s: %w", addr(n.IP), n.HardwareAddr, err)
		}
	}
	return nil
}
