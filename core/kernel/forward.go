package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/firewall"
	"github.com/kilo-overlay/kilo/core/state"
)

// Forward finds the FORWARD chains of others and puts an accept of ours into
// them, or takes it out. It never touches anything else of theirs. Its methods
// may be called at any time from any goroutine; Apply is for one caller at a time.
type Forward struct {
	log *slog.Logger

	// What is known, for Watch to tell what is news.
	mu     sync.Mutex
	known  map[firewall.ID]bool // chains of nftables as last found
	legacy []firewall.Chain     // of iptables-legacy as last found, or made
}

// NewForward returns a Forward for the network namespace of this process.
// log: nil is slog.Default().
func NewForward(log *slog.Logger) *Forward {
	if log == nil {
		log = slog.Default()
	}
	return &Forward{log: log}
}

// Chains lists the base chains of the forward hook that are not ours: those of
// nftables in every table, and FORWARD of iptables-legacy's filter tables where
// these are there. What could not be read is missing and named in the error.
func (f *Forward) Chains(ctx context.Context) ([]firewall.Chain, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out, err := nftForwardChains()
	known := make(map[firewall.ID]bool, len(out))
	for _, c := range out {
		known[c.ID] = true
	}
	legacy, err2 := legacyForwardChains()
	f.mu.Lock()
	f.known, f.legacy = known, legacy
	f.mu.Unlock()
	return append(out, legacy...), errors.Join(err, err2)
}

// Apply makes a change and verifies it. A chain that is not there has nothing of
// ours in it: taking out succeeds, putting in does not.
func (f *Forward) Apply(ctx context.Context, c firewall.Change) error {
	var err error
	switch c.Chain.Backend {
	case firewall.Legacy:
		err = changeLegacy(ctx, c)
		now, _ := legacyForwardChains()
		f.mu.Lock()
		f.legacy = now
		f.mu.Unlock()
	default:
		err = changeNFT(c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

var families = map[firewall.Family]byte{
	firewall.IPv4: unix.NFPROTO_IPV4, firewall.IPv6: unix.NFPROTO_IPV6, firewall.Both: unix.NFPROTO_INET,
}

func familyOf(number byte) (firewall.Family, bool) {
	for name, n := range families {
		if n == number {
			return name, true
		}
	}
	return "", false // bridges and devices have hooks of their own
}

func nftForwardChains() ([]firewall.Chain, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open an nftables socket: %w", err)
	}
	chains, err := dumpChains(c)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var out []firewall.Chain
	for _, chain := range chains {
		family, ok := familyOf(byte(chain.Table.Family))
		if !ok || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward || family == firewall.Both && chain.Table.Name == state.FilterTable {
			continue
		}
		id := firewall.ID{Backend: firewall.NFT, Family: family, Table: chain.Table.Name, Chain: chain.Name}
		found := firewall.Chain{ID: id, Drops: chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop}
		rules, err := acceptsIn(id)
		if err != nil {
			return out, fmt.Errorf("read %s: %w", id, err)
		}
		found.Accepts = len(rules)
		found.Intact = len(rules) == 1 && rules[0].intact
		out = append(out, found)
	}
	return out, nil
}

// dumpChains asks again when the answer changed while it was being given.
func dumpChains(c *nftables.Conn) (chains []*nftables.Chain, err error) {
	for range 10 {
		if chains, err = c.ListChains(); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return chains, err
}

// acceptRule is a rule in somebody else's chain that bears our comment.
type acceptRule struct {
	handle uint64
	intact bool // as we make it
	first  bool // of its chain
}

// acceptsIn finds our rules in a chain; none in one that is not there.
func acceptsIn(id firewall.ID) ([]acceptRule, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := &tableReader{conn: conn, family: families[id.Family], table: id.Table}
	list, err := r.ask(unix.NFT_MSG_GETRULE, netlink.Dump, []netlink.Attribute{{Type: unix.NFTA_RULE_CHAIN, Data: []byte(id.Chain + "\x00")}})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	wanted, err := marshal(accept())
	if err != nil {
		return nil, err
	}
	var out []acceptRule
	first := true
	for _, attrs := range list {
		if chain, _ := attribute(attrs, unix.NFTA_RULE_CHAIN); cString(chain) != id.Chain {
			continue // an older kernel gives all rules
		}
		nested, _ := attribute(attrs, unix.NFTA_RULE_EXPRESSIONS)
		exprs, err := parseExpressions(nested)
		if err != nil {
			return nil, err
		}
		user, _ := attribute(attrs, unix.NFTA_RULE_USERDATA)
		said := comment(user)
		// "iptables-nft -A" and iptables-nft-restore count, and write the
		// comment as a match: whoever saves and restores his rules makes of our
		// rule one that is as good.
		exprs = slices.DeleteFunc(exprs, func(e expression) bool {
			if e.name == "match" && cString(e.bytes("1")) == "comment" {
				said = cString(e.bytes("3"))
				return true
			}
			return e.name == "counter"
		})
		if said == firewall.Comment {
			handle, _ := attribute(attrs, unix.NFTA_RULE_HANDLE)
			if len(handle) != 8 {
				return nil, errors.New("a rule without a handle")
			}
			out = append(out, acceptRule{binary.BigEndian.Uint64(handle), sameExpressions(exprs, wanted), first})
		}
		first = false
	}
	return out, nil
}

// accept is "meta mark & 0x1000 == 0x1000 accept", in the expressions that
// iptables-nft makes of "-m mark --mark 0x1000/0x1000 -j ACCEPT" and reads back so:
// one that it does not know would make its whole table unreadable to it.
func accept() []expr.Any {
	mark := native32(state.MarkForwarded)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: mark, Xor: native32(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: mark},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// changeNFT replaces what is ours in a chain of nftables, in one transaction.
func changeNFT(change firewall.Change) error {
	rules, err := acceptsIn(change.Chain)
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: change.Chain.Table, Family: nftables.TableFamily(families[change.Chain.Family])}
	chain := &nftables.Chain{Table: table, Name: change.Chain.Chain}
	for _, r := range rules {
		if err := c.DelRule(&nftables.Rule{Table: table, Chain: chain, Handle: r.handle}); err != nil {
			return err
		}
	}
	if change.Accept {
		c.InsertRule(&nftables.Rule{Table: table, Chain: chain, Exprs: accept(),
			UserData: userdata.AppendString(nil, userdata.TypeComment, firewall.Comment)})
	}
	if err := c.Flush(); err != nil {
		return err
	}
	rules, err = acceptsIn(change.Chain)
	switch {
	case err != nil:
		return fmt.Errorf("verify: %w", err)
	case change.Accept && (len(rules) != 1 || !rules[0].intact || !rules[0].first), !change.Accept && len(rules) > 0:
		return fmt.Errorf("somebody else changes the chain at the same time: %d rules of ours in it", len(rules))
	}
	return nil
}

// legacyEvery is how often iptables-legacy's tables are looked at: they give no
// news.
const legacyEvery = 3 * time.Second

// Watch calls changed whenever Chains might answer something new, until ctx
// ends, and once at the beginning. Chains of nftables are heard of at once, those
// of iptables-legacy within seconds.
func (f *Forward) Watch(ctx context.Context, changed func()) error {
	news := subscription{"nftables", unix.NETLINK_NETFILTER, []uint32{unix.NFNLGRP_NFTABLES}, f.matters}
	c, err := news.open()
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(legacyEvery):
			}
			now, err := legacyForwardChains()
			f.mu.Lock()
			news := err != nil || !slices.Equal(now, f.legacy)
			f.mu.Unlock()
			if news {
				changed()
			}
		}
	})
	// What happened before the subscription stood was not heard.
	changed()
	return follow(ctx, f.log, news, c, changed)
}

// matters tells whether a message of nftables is about a base chain of the
// forward hook, or takes a rule out of one.
func (f *Forward) matters(m netlink.Message) bool {
	const header = 4 // struct nfgenmsg, which starts with the family
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < header {
		return false
	}
	family, ok := familyOf(m.Data[0])
	if !ok {
		return false
	}
	attrs, err := attributes(m.Data[header:])
	if err != nil {
		return false
	}
	// In chains' messages the name is attribute 3, in rules' it is 2.
	var name []byte
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWCHAIN:
		if nested, ok := attribute(attrs, unix.NFTA_CHAIN_HOOK); ok {
			hook, err := attributes(nested)
			number, _ := attribute(hook, unix.NFTA_HOOK_HOOKNUM)
			return err == nil && be32(number) == uint32(*nftables.ChainHookForward)
		}
		return false
	case unix.NFT_MSG_DELCHAIN:
		name, _ = attribute(attrs, unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_DELRULE:
		name, _ = attribute(attrs, unix.NFTA_RULE_CHAIN)
	default:
		return false
	}
	table, _ := attribute(attrs, unix.NFTA_TABLE_NAME)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[firewall.ID{Backend: firewall.NFT, Family: family, Table: cString(table), Chain: cString(name)}]
}
