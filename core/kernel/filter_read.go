package kernel

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/state"
)

// observeFilter reads our table back. What is in it and not of our words is
// there as state.Unknown.
func observeFilter() (state.Filter, error) {
	var f state.Filter
	err := readTable(&f)
	if errors.Is(err, unix.ENOENT) {
		return state.Filter{}, nil // no such table, or gone while we read it
	}
	if err != nil {
		return state.Filter{}, fmt.Errorf("read table inet %s: %w", state.FilterTable, err)
	}
	return f, nil
}

func readTable(f *state.Filter) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	r := &tableReader{conn: c, family: unix.NFPROTO_INET, table: state.FilterTable}
	table, err := r.ask(unix.NFT_MSG_GETTABLE, 0, nil)
	if err != nil {
		return err
	}
	var strange []string
	for _, attrs := range table {
		if flags, _ := attribute(attrs, unix.NFTA_TABLE_FLAGS); be32(flags) != 0 {
			strange = append(strange, fmt.Sprintf("table flags %#x", be32(flags)))
		}
	}
	if f.Sets, strange, err = r.sets(strange); err != nil {
		return err
	}
	if f.Chains, strange, err = r.chains(strange); err != nil {
		return err
	}
	if f.IsEmpty() && len(strange) == 0 {
		strange = append(strange, "nothing") // an empty Filter would mean no table
	}
	if len(strange) > 0 {
		odd := state.Chain{Name: "?"}
		for _, s := range strange {
			odd.Rules = append(odd.Rules, unknownRule(s))
		}
		f.Chains = append(f.Chains, odd)
	}
	return nil
}

func unknownRule(text string) state.FilterRule {
	return state.FilterRule{Action: state.Unknown{Text: text}}
}

// tableReader dumps the parts of a table. The library's own readers drop
// expressions that they do not know, and with them a stranger's edits.
type tableReader struct {
	conn   *netlink.Conn
	family byte // NFPROTO_*
	table  string
}

// ask sends a request about the table and returns the attributes of each
// answer. In all of them attribute 1 is the table's name.
func (r *tableReader) ask(message uint16, flags netlink.HeaderFlags, more []netlink.Attribute) ([][]netlink.Attribute, error) {
	attrs, err := netlink.MarshalAttributes(append([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: []byte(r.table + "\x00")}}, more...))
	if err != nil {
		return nil, err
	}
	const dumpInterrupted = netlink.HeaderFlags(unix.NLM_F_DUMP_INTR)
	for range 10 {
		answers, err := r.conn.Execute(netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | message), Flags: netlink.Request | flags},
			Data:   append([]byte{r.family, unix.NFNETLINK_V0, 0, 0}, attrs...),
		})
		if err != nil {
			return nil, err
		}
		var out [][]netlink.Attribute
		interrupted := false
		for _, a := range answers {
			interrupted = interrupted || a.Header.Flags&dumpInterrupted != 0
			if len(a.Data) < 4 {
				continue
			}
			attrs, err := attributes(a.Data[4:])
			if err != nil {
				return nil, err
			}
			if name, _ := attribute(attrs, unix.NFTA_TABLE_NAME); cString(name) == r.table {
				out = append(out, attrs)
			}
		}
		if !interrupted {
			return out, nil
		}
	}
	return nil, errors.New("it changes all the time")
}

// The kernel knows a set's type of key by numbers that are nft(8)'s affair.
const (
	keyIPv4 = 7
	keyIPv6 = 8
)

func (r *tableReader) sets(strange []string) ([]state.Set, []string, error) {
	list, err := r.ask(unix.NFT_MSG_GETSET, netlink.Dump, nil)
	if err != nil {
		return nil, strange, err
	}
	var sets []state.Set
	for _, attrs := range list {
		name, _ := attribute(attrs, unix.NFTA_SET_NAME)
		flags, _ := attribute(attrs, unix.NFTA_SET_FLAGS)
		key, _ := attribute(attrs, unix.NFTA_SET_KEY_TYPE)
		s := state.Set{Name: cString(name), V6: be32(key) == keyIPv6}
		if be32(flags) != unix.NFT_SET_INTERVAL || be32(key) != keyIPv4 && be32(key) != keyIPv6 {
			strange = append(strange, fmt.Sprintf("set %s with flags %#x of key type %d", s.Name, be32(flags), be32(key)))
			continue
		}
		ends, err := r.elements(name)
		if err != nil {
			return nil, strange, err
		}
		var ok bool
		if s.Elements, ok = prefixes(ends); !ok {
			strange = append(strange, fmt.Sprintf("set %s with elements that are no prefixes", s.Name))
		}
		sets = append(sets, s)
	}
	return sets, strange, nil
}

func (r *tableReader) elements(set []byte) ([]element, error) {
	lists, err := r.ask(unix.NFT_MSG_GETSETELEM, netlink.Dump, []netlink.Attribute{{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: set}})
	if err != nil {
		return nil, err
	}
	var out []element
	for _, attrs := range lists {
		list, _ := attribute(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		elems, err := attributes(list)
		if err != nil {
			return nil, err
		}
		for _, elem := range elems {
			attrs, err := attributes(elem.Data)
			if err != nil {
				return nil, err
			}
			nested, _ := attribute(attrs, unix.NFTA_SET_ELEM_KEY)
			data, err := attributes(nested)
			if err != nil {
				return nil, err
			}
			key, _ := attribute(data, unix.NFTA_DATA_VALUE)
			flags, _ := attribute(attrs, unix.NFTA_SET_ELEM_FLAGS)
			out = append(out, element{key: key, end: be32(flags)&unix.NFT_SET_ELEM_INTERVAL_END != 0})
		}
	}
	return out, nil
}

// prefixes is the reverse of intervals; false: they are something else.
func prefixes(ends []element) ([]netip.Prefix, bool) {
	slices.SortStableFunc(ends, func(a, b element) int {
		if c := slices.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end { // one interval ends where the next starts
			return -1
		}
		return 1
	})
	var out []netip.Prefix
	for i, e := range ends {
		if e.end {
			continue
		}
		start, ok := netip.AddrFromSlice(e.key)
		if !ok {
			return out, false
		}
		var after netip.Addr // invalid: the end of all addresses
		if i+1 < len(ends) {
			if !ends[i+1].end {
				return out, false
			}
			after, _ = netip.AddrFromSlice(ends[i+1].key)
		}
		p, ok := spanning(start, after)
		if !ok {
			return out, false
		}
		out = append(out, p)
	}
	return out, true
}

// spanning returns the prefix that starts at start and ends before after.
func spanning(start, after netip.Addr) (netip.Prefix, bool) {
	from := start.AsSlice()
	to := make([]byte, len(from))
	if after.IsValid() {
		to = after.Prev().AsSlice()
	} else {
		for i := range to {
			to[i] = 0xff
		}
	}
	if len(from) != len(to) {
		return netip.Prefix{}, false
	}
	// The length is what the first and the last address have in common.
	length := 0
	for i := range from {
		same := bits.LeadingZeros8(from[i] ^ to[i])
		if length += same; same < 8 {
			break
		}
	}
	p := netip.PrefixFrom(start, length)
	return p, p.Masked() == p && slices.Equal(last(p).AsSlice(), to)
}

func (r *tableReader) chains(strange []string) ([]state.Chain, []string, error) {
	list, err := r.ask(unix.NFT_MSG_GETCHAIN, netlink.Dump, nil)
	if err != nil {
		return nil, strange, err
	}
	rules, err := r.rules()
	if err != nil {
		return nil, strange, err
	}
	var chains []state.Chain
	for _, attrs := range list {
		c, odd, err := chain(attrs)
		if err != nil {
			return nil, strange, err
		}
		if odd != "" {
			strange = append(strange, odd)
		}
		c.Rules = rules[c.Name]
		chains = append(chains, c)
	}
	return chains, strange, nil
}

// chain reads a chain's own attributes; odd says what is not of our words.
func chain(attrs []netlink.Attribute) (c state.Chain, odd string, err error) {
	name, _ := attribute(attrs, unix.NFTA_CHAIN_NAME)
	kind, _ := attribute(attrs, unix.NFTA_CHAIN_TYPE)
	c.Name, c.Type = cString(name), state.ChainType(cString(kind))
	nested, ok := attribute(attrs, unix.NFTA_CHAIN_HOOK)
	if !ok {
		return c, "chain " + c.Name + " without a hook", nil
	}
	hook, err := attributes(nested)
	if err != nil {
		return c, "", err
	}
	number, _ := attribute(hook, unix.NFTA_HOOK_HOOKNUM)
	priority, _ := attribute(hook, unix.NFTA_HOOK_PRIORITY)
	c.Priority = int(int32(be32(priority)))
	for name, h := range hooks {
		if uint32(*h) == be32(number) {
			c.Hook = name
		}
	}
	if policy, ok := attribute(attrs, unix.NFTA_CHAIN_POLICY); ok && be32(policy) != uint32(nftables.ChainPolicyAccept) {
		odd = "chain " + c.Name + " with policy drop"
	}
	return c, odd, nil
}

// rules reads all rules of the table by chain, in their order.
func (r *tableReader) rules() (map[string][]state.FilterRule, error) {
	list, err := r.ask(unix.NFT_MSG_GETRULE, netlink.Dump, nil)
	if err != nil {
		return nil, err
	}
	rules := map[string][]state.FilterRule{}
	for _, attrs := range list {
		chain, _ := attribute(attrs, unix.NFTA_RULE_CHAIN)
		nested, _ := attribute(attrs, unix.NFTA_RULE_EXPRESSIONS)
		exprs, err := parseExpressions(nested)
		if err != nil {
			return nil, err
		}
		rule, ok := decompile(exprs)
		if !ok {
			var words []string
			for _, e := range exprs {
				words = append(words, e.name)
			}
			rule = unknownRule("[" + strings.Join(words, " ") + "]")
		}
		user, _ := attribute(attrs, unix.NFTA_RULE_USERDATA)
		rule.Comment = comment(user)
		rules[cString(chain)] = append(rules[cString(chain)], rule)
	}
	return rules, nil
}

// comment finds the comment in a rule's user data: entries of a byte of type,
// a byte of length, and the data, here a C string.
func comment(user []byte) string {
	for len(user) >= 2 && len(user) >= 2+int(user[1]) {
		if user[0] == byte(userdata.TypeComment) {
			return cString(user[2 : 2+int(user[1])])
		}
		user = user[2+int(user[1]):]
	}
	return ""
}
