package kernel

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// expression is one expression of a rule as it travels over netlink: its name
// and attributes by number ("3"), nested ones by path ("3.1"). Unlike the
// library's types it loses nothing: what we do not know is there to be seen.
type expression struct {
	name  string
	attrs map[string]string
}

// nestedAttrs are the attributes, by path, that hold others. The kernel does
// not mark them in what it dumps.
var nestedAttrs = map[string][]string{
	"cmp":       {"3"},      // NFTA_CMP_DATA
	"bitwise":   {"4", "5"}, // NFTA_BITWISE_MASK, NFTA_BITWISE_XOR
	"immediate": {"2", "2.2"},
}

// parseExpressions reads the list in NFTA_RULE_EXPRESSIONS.
func parseExpressions(list []byte) ([]expression, error) {
	elems, err := attributes(list)
	if err != nil {
		return nil, err
	}
	out := make([]expression, 0, len(elems))
	for _, elem := range elems {
		e, err := parseExpression(elem.Data)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func parseExpression(b []byte) (expression, error) {
	e := expression{attrs: map[string]string{}}
	attrs, err := attributes(b)
	if err != nil {
		return e, err
	}
	for _, a := range attrs {
		switch a.Type {
		case unix.NFTA_EXPR_NAME:
			e.name = cString(a.Data)
		case unix.NFTA_EXPR_DATA:
			// The name comes first.
			if err := e.flatten("", a.Data); err != nil {
				return e, fmt.Errorf("expression %s: %w", e.name, err)
			}
		}
	}
	e.normalize()
	return e, nil
}

func (e *expression) flatten(prefix string, b []byte) error {
	attrs, err := attributes(b)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		path := prefix + fmt.Sprint(a.Type)
		if slices.Contains(nestedAttrs[e.name], path) {
			if err := e.flatten(path+".", a.Data); err != nil {
				return err
			}
			continue
		}
		e.attrs[path] = string(a.Data)
	}
	return nil
}

// normalize writes out what a sender may leave to the kernel, and drops what
// the kernel does not give back.
func (e *expression) normalize() {
	implied := func(path, value string) {
		if _, ok := e.attrs[path]; !ok {
			e.attrs[path] = value
		}
	}
	const zero = "\x00\x00\x00\x00"
	switch e.name {
	case "lookup":
		delete(e.attrs, "4") // NFTA_LOOKUP_SET_ID, meaningful within a transaction
		implied("5", zero)   // NFTA_LOOKUP_FLAGS
	case "bitwise":
		implied("6", zero) // NFTA_BITWISE_OP
	case "exthdr":
		implied("5", zero) // NFTA_EXTHDR_FLAGS
	case "nat":
		if least, ok := e.attrs["3"]; ok { // NFTA_NAT_REG_ADDR_MIN
			implied("4", least)              // NFTA_NAT_REG_ADDR_MAX
			implied("7", "\x00\x00\x00\x01") // NFTA_NAT_FLAGS: NF_NAT_RANGE_MAP_IPS
		}
	case "reject":
		if e.number("1") == unix.NFT_REJECT_TCP_RST {
			delete(e.attrs, "2") // NFTA_REJECT_ICMP_CODE
		}
	}
}

// number reads a 32-bit attribute; -1: it is not there.
func (e *expression) number(path string) int64 {
	if b := e.attrs[path]; len(b) == 4 {
		return int64(binary.BigEndian.Uint32([]byte(b)))
	}
	return -1
}

func (e *expression) bytes(path string) []byte { return []byte(e.attrs[path]) }

func sameExpressions(a, b []expression) bool {
	return slices.EqualFunc(a, b, func(a, b expression) bool {
		return a.name == b.name && maps.Equal(a.attrs, b.attrs)
	})
}

// marshal brings the library's expressions into the form in which the kernel's
// are read.
func marshal(exprs []expr.Any) ([]expression, error) {
	out := make([]expression, 0, len(exprs))
	for _, x := range exprs {
		b, err := expr.Marshal(byte(nftables.TableFamilyINet), x)
		if err != nil {
			return nil, err
		}
		e, err := parseExpression(b)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// attributes splits a list of netlink attributes; the types come without flags.
func attributes(b []byte) ([]netlink.Attribute, error) {
	attrs, err := netlink.UnmarshalAttributes(b)
	for i := range attrs {
		attrs[i].Type &^= unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	}
	return attrs, err
}

// attribute returns the data of the first attribute of that type.
func attribute(attrs []netlink.Attribute, number uint16) ([]byte, bool) {
	for _, a := range attrs {
		if a.Type == number {
			return a.Data, true
		}
	}
	return nil, false
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

func be32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
