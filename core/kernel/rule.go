package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// observeRules reads the rules of our protocol at our priorities or for our tables.
func observeRules() ([]state.Rule, error) {
	var rules []state.Rule
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if family == netlink.FAMILY_V6 && noIPv6(err) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list rules: %w", err))
			continue
		}
		for i := range found {
			if r, ok := observedRule(&found[i]); ok {
				rules = append(rules, r)
			}
		}
	}
	return rules, errors.Join(errs...)
}

// ourPlace tells whether a rule of our protocol is ours.
func ourPlace(priority, table int) bool {
	return priority >= state.PriorityTunnel && priority <= state.PriorityOverlay ||
		ourTable(uint32(table))
}

// observedRule translates a rule of ours. One that says more than our words
// can is somebody else's, whatever its protocol.
func observedRule(n *netlink.Rule) (state.Rule, bool) {
	if n.Protocol != state.Protocol || !ourPlace(n.Priority, n.Table) {
		return state.Rule{}, false
	}
	r := state.Rule{
		Priority: n.Priority,
		V6:       n.Family == netlink.FAMILY_V6,
		Invert:   n.Invert,
		Mark:     n.Mark,
		IIF:      n.IifName,
		Table:    n.Table,
	}
	switch n.IPProto & 0xff { // one byte, and the library reads four
	case 0:
	case unix.IPPROTO_UDP:
		r.Proto = "udp"
	case unix.IPPROTO_TCP:
		r.Proto = "tcp"
	default:
		return r, false
	}
	var ok [3]bool
	r.From, ok[2] = singleAddr(n.Src)
	r.SrcPort, ok[0] = singlePort(n.Sport)
	r.DstPort, ok[1] = singlePort(n.Dport)
	full := n.Mask == nil || *n.Mask == fullMask || n.Mark == 0 && *n.Mask == 0
	plain := n.Dst == nil && n.OifName == "" && n.Tos == 0 && n.TunID == 0 && n.UIDRange == nil &&
		n.Goto < 0 && n.SuppressIfgroup < 0 && n.SuppressPrefixlen < 0
	return r, ok[0] && ok[1] && ok[2] && full && plain
}

const fullMask = 1<<32 - 1

func singlePort(p *netlink.RulePortRange) (uint16, bool) {
	if p == nil {
		return 0, true
	}
	return p.Start, p.Start == p.End
}

func singleAddr(n *net.IPNet) (netip.Addr, bool) {
	if n == nil {
		return netip.Addr{}, true
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	return a.Unmap(), ok && bits > 0 && ones == bits
}

// addRule adds a rule unless it is there. The kernel's own check for
// duplicates ignores "not" and the protocol, so it is not asked.
func addRule(r state.Rule) error {
	there, err := hasRule(r)
	if err != nil || there {
		return err
	}
	err = writeRule(unix.RTM_NEWRULE, unix.NLM_F_CREATE, r)
	if r.V6 && noIPv6(err) {
		return nil // no packet to be ruled either
	}
	return err
}

// deleteRule removes a rule if it is there: what the kernel is told to delete
// is a pattern, which might fit another rule of ours.
func deleteRule(r state.Rule) error {
	there, err := hasRule(r)
	if err != nil || !there {
		return err
	}
	if err := writeRule(unix.RTM_DELRULE, 0, r); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func hasRule(r state.Rule) (bool, error) {
	rules, err := observeRules()
	return slices.Contains(rules, r), err
}

// writeRule sends a rule. The library's own way writes the one-byte ipproto in
// four, of which the kernel complains in its log.
func writeRule(message, flags int, r state.Rule) error {
	protocol, known := protocols[r.Proto]
	if r.Proto != "" && !known {
		return fmt.Errorf("no rule for protocol %q", r.Proto)
	}
	if r.From.IsValid() && r.From.Is6() != r.V6 {
		return fmt.Errorf("rule %q: its source is of the other family", r)
	}
	if !ourPlace(r.Priority, r.Table) {
		return fmt.Errorf("neither priority %d nor table %d is ours", r.Priority, r.Table)
	}
	req := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	header := &nl.RtMsg{}
	header.Family = unix.AF_INET
	if r.V6 {
		header.Family = unix.AF_INET6
	}
	header.Type = unix.FR_ACT_TO_TBL
	header.Src_len = uint8(r.From.BitLen())
	if r.Invert {
		header.Flags = netlink.FibRuleInvert
	}
	req.AddData(header)
	u32 := func(attr int, v uint32) { req.AddData(nl.NewRtAttr(attr, nl.Uint32Attr(v))) }
	port := func(attr int, p uint16) {
		if p != 0 {
			both := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, p), p)
			req.AddData(nl.NewRtAttr(attr, both))
		}
	}
	u32(nl.FRA_PRIORITY, uint32(r.Priority))
	u32(nl.FRA_TABLE, uint32(r.Table))
	req.AddData(nl.NewRtAttr(nl.FRA_PROTOCOL, []byte{state.Protocol}))
	if r.From.IsValid() {
		req.AddData(nl.NewRtAttr(nl.FRA_SRC, r.From.AsSlice()))
	}
	if r.Mark != 0 {
		u32(nl.FRA_FWMARK, r.Mark)
		u32(nl.FRA_FWMASK, fullMask)
	}
	if r.IIF != "" {
		req.AddData(nl.NewRtAttr(nl.FRA_IIFNAME, nl.ZeroTerminated(r.IIF)))
	}
	if known {
		req.AddData(nl.NewRtAttr(nl.FRA_IP_PROTO, []byte{protocol}))
	}
	port(nl.FRA_SPORT_RANGE, r.SrcPort)
	port(nl.FRA_DPORT_RANGE, r.DstPort)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
