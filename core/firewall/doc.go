// Package firewall decides about the FORWARD chains of others: Docker's, ufw's,
// an administrator's.
//
// A chain that drops what none of its rules accepts drops the mesh's traffic
// too, and no accept elsewhere helps, in our own table or at any priority: every
// chain of a hook has to let a packet pass. So such a chain is reported, and only
// where somebody asks for it (--iptables-forward-rules) an accept of ours is put
// into it. It recognises the mesh's packets by a mark that our own table sets
// before (state.MarkForwarded, plan's chains tag and untag), so one rule serves
// both directions, every role and every backend, and never changes with the
// cluster.
//
// Everything here is pure. core/kernel finds the chains and changes them;
// core/agent keeps the record of what was touched.
package firewall
