package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// resubscribeAfter is how long a subscription that broke waits before the next
// attempt.
const resubscribeAfter = time.Second

// subscription is one netlink family with the groups to hear, and what of it
// matters.
type subscription struct {
	name    string
	family  int
	groups  []uint32
	matters func(netlink.Message) bool
}

var subscriptions = []subscription{
	{"rtnetlink", unix.NETLINK_ROUTE, []uint32{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	}, routingMatters},
	{"nftables", unix.NETLINK_NETFILTER, []uint32{unix.NFNLGRP_NFTABLES}, filterMatters},
}

// Watch calls changed whenever Observe or Host might answer something new: a
// link, an address, an entry of the encapsulation link, a route of main or
// of our tables, a rule or our nftables table changed, by us or others. These are hints: several changes may be one
// call, and a call may come without a change. It returns ctx's error when ctx
// ends, or why it could not begin; a subscription that breaks later is made
// anew, and changed is called since something may have been missed.
func (k *Kernel) Watch(ctx context.Context, changed func()) error {
	ended := make(chan error, len(subscriptions))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, s := range subscriptions {
		c, err := s.open()
		if err != nil {
			return fmt.Errorf("watch %s: %w", s.name, err)
		}
		go func() { ended <- follow(ctx, k.log, s, c, changed) }()
	}
	// What happened before the subscriptions stood was not heard.
	changed()
	err := <-ended
	cancel()
	for range len(subscriptions) - 1 {
		<-ended
	}
	return err
}

func (s *subscription) open() (*netlink.Conn, error) {
	c, err := netlink.Dial(s.family, nil)
	if err != nil {
		return nil, err
	}
	for _, g := range s.groups {
		if err := c.JoinGroup(g); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// follow listens until ctx ends, through whatever happens to the socket.
func follow(ctx context.Context, log *slog.Logger, s subscription, c *netlink.Conn, changed func()) error {
	for {
		err := listen(ctx, s, c, changed)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Warn("the kernel's news broke off, listening anew", "of", s.name, "error", err)
		for c = nil; c == nil; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(resubscribeAfter):
			}
			c, _ = s.open()
		}
		changed()
	}
}

// listen calls changed for what matters until the socket breaks or ctx ends,
// and closes it.
func listen(ctx context.Context, s subscription, c *netlink.Conn, changed func()) error {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer func() {
		if stop() {
			c.Close()
		}
	}()
	for {
		messages, err := c.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			changed() // more than the socket could hold: some of it may matter
			continue
		case err != nil:
			return err
		}
		for _, m := range messages {
			if s.matters(m) {
				changed()
				break
			}
		}
	}
}

// routingMatters tells whether a message of rtnetlink is about something that
// we, or an adapter, look at.
func routingMatters(m netlink.Message) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		// Bridges tell of their ports' state under a family of their own.
		return len(m.Data) > 0 && m.Data[0] == unix.AF_UNSPEC
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return ourEntry(m.Data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		r, ok := routeHeader(m.Data)
		return ok && !r.cloned && (r.table == unix.RT_TABLE_MAIN || ourTable(r.table))
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		r, ok := routeHeader(m.Data)
		return ok && (r.protocol == state.Protocol || ourTable(r.table))
	}
	return false
}

// ourEntry tells whether a message is about a permanent neighbour or forwarding
// entry of the encapsulation link. What the kernel learns comes and goes all the
// time, and others' entries do too.
func ourEntry(b []byte) bool {
	const index, condition = 4, 8 // struct ndmsg: family, padding, index, state
	if len(b) < condition+2 || binary.NativeEndian.Uint16(b[condition:])&unix.NUD_PERMANENT == 0 {
		return false
	}
	link, err := net.InterfaceByIndex(int(binary.NativeEndian.Uint32(b[index:])))
	return err == nil && link.Name == state.VXLANLink
}

func ourTable(table uint32) bool {
	return table == state.TableOverlay || table == state.TableReturn
}

// header is what struct rtmsg or fib_rule_hdr and their attributes say that
// tells ours from others.
type header struct {
	table    uint32
	protocol byte
	cloned   bool
}

// Both structures: family, dst_len, src_len, tos, table, and from byte 8 flags
// of four bytes; attributes follow. Their attribute for the table has one number.
const (
	routeHeaderLen = 12
	tableAttr      = unix.RTA_TABLE
	ruleProtocol   = 21 // FRA_PROTOCOL
)

func routeHeader(b []byte) (header, bool) {
	if len(b) < routeHeaderLen {
		return header{}, false
	}
	h := header{table: uint32(b[4]), cloned: binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED != 0}
	attrs, err := attributes(b[routeHeaderLen:])
	if err != nil {
		return h, false
	}
	if t, ok := attribute(attrs, tableAttr); ok && len(t) == 4 {
		h.table = binary.NativeEndian.Uint32(t)
	}
	if p, ok := attribute(attrs, ruleProtocol); ok && len(p) == 1 {
		h.protocol = p[0]
	}
	return h, true
}

// filterMatters tells whether a message of nftables is about our table: its
// name is attribute 1 of all of them but those about a whole generation.
func filterMatters(m netlink.Message) bool {
	const header = 4 // struct nfgenmsg, which starts with the family
	if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN || len(m.Data) < header || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	attrs, err := attributes(m.Data[header:])
	if err != nil {
		return false
	}
	name, _ := attribute(attrs, unix.NFTA_TABLE_NAME)
	return cString(name) == state.FilterTable
}
