package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"

	"github.com/kilo-overlay/kilo/core/state"
)

const (
	// maxComment is how long a rule's comment may be, in bytes; nft(8) itself
	// stops at 128.
	maxComment = 120
	// elementsPerMessage keeps the list of elements in one message below the
	// 64 KiB that a netlink attribute can hold.
	elementsPerMessage = 1000
	// socketBuffer holds a whole transaction: it is sent in one piece.
	socketBuffer = 16 << 20
)

var hooks = map[string]*nftables.ChainHook{
	"prerouting":  nftables.ChainHookPrerouting,
	"input":       nftables.ChainHookInput,
	"forward":     nftables.ChainHookForward,
	"output":      nftables.ChainHookOutput,
	"postrouting": nftables.ChainHookPostrouting,
}

// setFilter replaces the table in one transaction: packets meet the old one or
// the new one, never a part.
func setFilter(f state.Filter) error {
	c, err := nftables.New(nftables.WithSockOptions(
		func(c *netlink.Conn) error { return c.SetWriteBuffer(socketBuffer) },
		func(c *netlink.Conn) error { return c.SetReadBuffer(socketBuffer) },
	))
	if err != nil {
		return fmt.Errorf("open an nftables socket: %w", err)
	}
	table := &nftables.Table{Name: state.FilterTable, Family: nftables.TableFamilyINet}
	// Added first, there is always one to delete.
	c.AddTable(table)
	c.DelTable(table)
	if !f.IsEmpty() {
		c.AddTable(table)
	}
	for i := range f.Sets {
		if err := addSet(c, table, uint32(i+1), f.Sets[i]); err != nil {
			return err
		}
	}
	for i := range f.Chains {
		if err := addChain(c, table, f.Chains[i]); err != nil {
			return err
		}
	}
	return c.Flush()
}

func addSet(c *nftables.Conn, table *nftables.Table, id uint32, s state.Set) error {
	ends, err := intervals(s)
	if err != nil {
		return err
	}
	set := &nftables.Set{Table: table, ID: id, Name: s.Name, Interval: true, KeyType: nftables.TypeIPAddr}
	if s.V6 {
		set.KeyType = nftables.TypeIP6Addr
	}
	if err := c.AddSet(set, nil); err != nil {
		return fmt.Errorf("set %s: %w", s.Name, err)
	}
	elements := make([]nftables.SetElement, len(ends))
	for i, e := range ends {
		elements[i] = nftables.SetElement{Key: e.key, IntervalEnd: e.end}
	}
	for chunk := range slices.Chunk(elements, elementsPerMessage) {
		if err := c.SetAddElements(set, chunk); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return nil
}

func addChain(c *nftables.Conn, table *nftables.Table, wanted state.Chain) error {
	hook, ok := hooks[wanted.Hook]
	if !ok {
		return fmt.Errorf("chain %s: no hook %q", wanted.Name, wanted.Hook)
	}
	accept := nftables.ChainPolicyAccept
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: wanted.Name, Type: nftables.ChainType(wanted.Type), Hooknum: hook,
		Priority: nftables.ChainPriorityRef(nftables.ChainPriority(wanted.Priority)), Policy: &accept,
	})
	for _, r := range wanted.Rules {
		exprs, err := compile(r)
		if err != nil {
			return fmt.Errorf("chain %s: %w", wanted.Name, err)
		}
		rule := &nftables.Rule{Table: table, Chain: chain, Exprs: exprs}
		if r.Comment != "" {
			if len(r.Comment) > maxComment || strings.ContainsAny(r.Comment, "\"\x00\n") {
				return fmt.Errorf("chain %s: rule %q: a comment has at most %d bytes, none of them a quote or line break", wanted.Name, r, maxComment)
			}
			rule.UserData = userdata.AppendString(nil, userdata.TypeComment, r.Comment)
		}
		c.AddRule(rule)
	}
	return nil
}
