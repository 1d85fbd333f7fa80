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
		MAC:    link.Attrs().HardwareAddr.String(),
	}
	entries, err := readRemotes(link)
	if err != nil {
		return v, err
	}
	// A neighbour and the forwarding entry of its MAC make a remote; half of
	// one, or one that leaves by any link, is a remote that nobody wants, so it
	// gets mended.
	used := map[string]bool{}
	for _, n := range entries.neighbours {
		mac := n.HardwareAddr.String()
		r := state.VXLANRemote{Inner: addr(n.IP), MAC: mac}
		for _, f := range entries.forwards {
			if f.mac.String() == mac {
				used[mac] = true
				if f.via == link.VtepDevIndex {
					r.Outer = addr(f.outer)
				}
			}
		}
		v.Remotes = append(v.Remotes, r)
	}
	for _, f := range entries.forwards {
		if mac := f.mac.String(); !used[mac] {
			v.Remotes = append(v.Remotes, state.VXLANRemote{MAC: mac, Outer: addr(f.outer)})
		}
	}
	return v, nil
}

type remoteEntries struct {
	neighbours []netlink.Neigh
	forwards   []forward
}

func readRemotes(link netlink.Link) (remoteEntries, error) {
	var e remoteEntries
	index := link.Attrs().Index
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			return e, fmt.Errorf("list neighbours: %w", err)
		}
		for _, n := range list {
			if n.State&netlink.NUD_PERMANENT != 0 { // not what the kernel learned
				e.neighbours = append(e.neighbours, n)
			}
		}
	}
	var err error
	if e.forwards, err = forwards(index); err != nil {
		return e, fmt.Errorf("list forwarding entries: %w", err)
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
func setRemotes(link *netlink.Vxlan, remotes []state.VXLANRemote) error {
	index := link.Attrs().Index
	neighbours, macs := map[string]bool{}, map[string]forward{}
	key := func(n *netlink.Neigh) string {
		return fmt.Sprintf("%d %s %s", n.Family, addr(n.IP), n.HardwareAddr)
	}
	for _, r := range remotes {
		mac, err := net.ParseMAC(r.MAC)
		if err != nil {
			return fmt.Errorf("remote %s: %w", r.Inner, err)
		}
		f := forward{mac: mac, outer: r.Outer.AsSlice(), via: link.VtepDevIndex}
		n := netlink.Neigh{LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: r.Inner.AsSlice(), HardwareAddr: mac}
		if r.Inner.Is6() {
			n.Family = unix.AF_INET6
		}
		neighbours[key(&n)], macs[mac.String()] = true, f
		if err := setForward(index, f); err != nil {
			return fmt.Errorf("remote %s: %w", r.Inner, err)
		}
		if err := netlink.NeighSet(&n); err != nil {
			return fmt.Errorf("remote %s lladdr %s: %w", r.Inner, r.MAC, err)
		}
	}
	now, err := readRemotes(link)
	if err != nil {
		return err
	}
	for _, n := range now.neighbours {
		if neighbours[key(&n)] {
			continue
		}
		if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete neighbour %s lladdr %s: %w", addr(n.IP), n.HardwareAddr, err)
		}
	}
	for _, f := range now.forwards {
		if w, ok := macs[f.mac.String()]; ok && w.same(&f) {
			continue
		}
		if err := deleteForward(index, f); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete: %w", err)
		}
	}
	return nil
}
