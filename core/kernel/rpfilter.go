package kernel

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rpLoose is the value of rp_filter that asks only for some way back. The kernel
// takes the larger of an interface's own value and that of "all", so 2 on our link
// holds against a strict 1 for all (Documentation/networking/ip-sysctl.rst).
const rpLoose = 2

// reversePath is an interface's own rp_filter; -1: not known.
func reversePath(name string) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/sys/net/ipv4/conf/%s/rp_filter", name))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return -1
	}
	return n
}

// Numbers that the library has no names for (linux/if_link.h, linux/ip.h).
const (
	iflaInetConf        = 1
	ipv4DevconfRPFilter = 8
)

// setReversePath sets an interface's rp_filter by netlink: /proc/sys is read-only
// in a container that is not privileged.
func setReversePath(link netlink.Link, value uint32) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
	conf.AddRtAttr(ipv4DevconfRPFilter, nl.Uint32Attr(value))
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.AddData(msg)
	req.AddData(spec)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
