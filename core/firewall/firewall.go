package firewall

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kilo-overlay/kilo/core/model"
)

// Comment is the comment of our accept in a foreign chain: what it is known by.
const Comment = "kilo: traffic of the mesh (kg --iptables-forward-rules)"

// ForwardDrop is the kind of warning about a chain that drops the mesh's traffic.
const ForwardDrop = "ForwardDrop"

// Backend is what a chain belongs to.
type Backend string

const (
	// NFT is nftables; the chains of iptables-nft are among its.
	NFT Backend = "nft"
	// Legacy is iptables as it was before nftables (iptables-legacy).
	Legacy Backend = "legacy"
)

// Family says which packets a chain sees, in nft's words.
type Family string

const (
	IPv4 Family = "ip"
	IPv6 Family = "ip6"
	Both Family = "inet"
)

// ID names a base chain of the forward hook.
type ID struct {
	Backend Backend `json:"backend"`
	Family  Family  `json:"family"`
	Table   string  `json:"table"`
	Chain   string  `json:"chain"`
}

// String names the chain in the words of the tool that shows it.
func (id ID) String() string {
	switch {
	case id.Backend == NFT:
		return fmt.Sprintf("chain %s of nftables table %s %s", id.Chain, id.Family, id.Table)
	case id.Family == IPv6:
		return fmt.Sprintf("chain %s of table %s of ip6tables-legacy", id.Chain, id.Table)
	}
	return fmt.Sprintf("chain %s of table %s of iptables-legacy", id.Chain, id.Table)
}

// compare orders IDs.
func (id ID) compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Backend, other.Backend), cmp.Compare(id.Family, other.Family),
		cmp.Compare(id.Table, other.Table), cmp.Compare(id.Chain, other.Chain))
}

// Chain is a base chain of the forward hook as it was found.
type Chain struct {
	ID
	// Drops tells that its policy is drop.
	Drops bool
	// Accepts counts the rules in it that bear our Comment.
	Accepts int
	// Intact tells that there is one, and that it is as we make it. Where it
	// stands does not matter: who puts a drop before it means it.
	Intact bool
}

// Change is what is to be done to a chain.
type Change struct {
	Chain ID
	// Accept: our accept is to stand in it once, at its beginning. Otherwise
	// nothing of ours is to be left in it.
	Accept bool
}

func (c Change) String() string {
	if c.Accept {
		return "put the accept of the mesh's traffic into " + c.Chain.String()
	}
	return "take the accept of the mesh's traffic out of " + c.Chain.String()
}

// Wants is what this node needs.
type Wants struct {
	// Accept: somebody asked for accepts (--iptables-forward-rules).
	Accept bool
	// IPv4 and IPv6 tell which packets of the mesh this node forwards.
	IPv4, IPv6 bool
}

// Decide returns what to change, given the chains that were found and the record
// of those that hold, or held, an accept of ours. The warnings tell which chains
// stand in the mesh's way and stay as they are; they are about object, the node.
func Decide(found []Chain, record []ID, w Wants, object string) (changes []Change, warnings []model.Warning) {
	there := make(map[ID]bool, len(found))
	for _, c := range found {
		there[c.ID] = true
		switch inTheWay := c.Drops && w.concerns(c.Family); {
		case inTheWay && w.Accept && !c.Intact:
			changes = append(changes, Change{c.ID, true})
		case inTheWay && w.Accept:
		case c.Accepts > 0 || slices.Contains(record, c.ID):
			changes = append(changes, Change{c.ID, false})
			fallthrough
		default:
			if inTheWay {
				warnings = append(warnings, model.Warning{Kind: ForwardDrop, Object: object, Message: fmt.Sprintf(
					"%s has policy drop: traffic of the mesh that none of its rules accepts is dropped while it is forwarded here, and no accept elsewhere helps. "+
						"Accept it there (to and from pods and nodes of all locations), or start kg with --iptables-forward-rules, which puts one commented accept at the chain's beginning and takes it out again", c.ID)})
			}
		}
	}
	// A chain that is no longer found at the hook may be there all the same.
	for _, id := range record {
		if !there[id] {
			changes = append(changes, Change{id, false})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Chain.compare(b.Chain) })
	return changes, warnings
}

func (w Wants) concerns(f Family) bool {
	return w.IPv4 && f != IPv6 || w.IPv6 && f != IPv4
}

// Record returns the record after a change, sorted. It is written before an
// accept is made and after it was removed, so that it never misses one.
func Record(record []ID, c Change) []ID {
	out := slices.DeleteFunc(slices.Clone(record), func(id ID) bool { return id == c.Chain })
	if c.Accept {
		out = append(out, c.Chain)
	}
	slices.SortFunc(out, ID.compare)
	return out
}
