package kernel

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// forward is an entry of a VXLAN's forwarding database: frames for mac go to
// outer, and leave by the link with index via. Without the latter they would go
// wherever the routing tables say, our own among them.
type forward struct {
	mac   net.HardwareAddr
	outer net.IP
	via   int
}

func (f *forward) same(o *forward) bool {
	return f.mac.String() == o.mac.String() && f.outer.Equal(o.outer) && f.via == o.via
}

// forwards lists the permanent entries of a link.
func forwards(link int) ([]forward, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	request.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(link)})
	messages, err := dump(func() ([][]byte, error) { return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH) })
	if err != nil {
		return nil, err
	}
	var out []forward
	for _, m := range messages {
		n, err := netlink.NeighDeserialize(m)
		if err != nil {
			return nil, err
		}
		if n.LinkIndex != link || n.State&netlink.NUD_PERMANENT == 0 || n.IP == nil {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[new(netlink.Ndmsg).Len():])
		if err != nil {
			return nil, err
		}
		f := forward{mac: n.HardwareAddr, outer: n.IP}
		for _, a := range attrs {
			if a.Attr.Type == netlink.NDA_IFINDEX && len(a.Value) >= 4 {
				f.via = int(nl.NativeEndian().Uint32(a.Value))
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// setForward writes an entry over any other for its MAC.
func setForward(link int, f forward) error {
	return changeForward(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, link, f)
}

func deleteForward(link int, f forward) error { return changeForward(unix.RTM_DELNEIGH, 0, link, f) }

func changeForward(kind, flags, link int, f forward) error {
	request := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	request.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(link), State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF})
	outer := f.outer.To4()
	if outer == nil {
		outer = f.outer.To16()
	}
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, outer))
	request.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, f.mac))
	if f.via > 0 {
		request.AddData(nl.NewRtAttr(netlink.NDA_IFINDEX, nl.Uint32Attr(uint32(f.via))))
	}
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return fmt.Errorf("forwarding entry %s dst %s: %w", f.mac, addr(f.outer), err)
	}
	return nil
}
