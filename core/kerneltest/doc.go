// Package kerneltest holds an apply.Kernel that lives in memory and has the
// manners of Linux, and the suite that both it and core/kernel pass. Tests of
// other packages may build on Kernel because the suite keeps it honest: what
// Suite asks of one it asks of the other, and each manner in here was first
// seen on a real kernel (6.18, nftables 1.0.6).
//
// A few of the manners: a route goes with its link, and with its link's last
// IPv4 address; an unreachable stays; a gateway must be on-link unless the
// route says so; an allowed IP moves from peer to peer; equal rules are
// refused; NAT is for NAT chains; elements of a set must not overlap.
//
// Beyond what Linux would refuse, Kernel refuses what the design forbids:
// routes and rules outside our tables and priorities, links of other names.
//
// One thing is simpler here: whether a gateway is on-link is asked of its
// device's addresses alone. Linux looks the gateway up; in IPv6 it does so in
// our own tables as well, where a wide route of ours can hide it.
//
// Start with New; write a scenario with Kernel's methods as a stranger would
// use ip(8). To test another Kernel, implement Fixture and call Suite.
package kerneltest
