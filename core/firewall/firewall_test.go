package firewall_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/firewall"
)

var (
	docker = firewall.ID{Backend: firewall.NFT, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"}
	docke6 = firewall.ID{Backend: firewall.NFT, Family: firewall.IPv6, Table: "filter", Chain: "FORWARD"}
	admin  = firewall.ID{Backend: firewall.NFT, Family: firewall.Both, Table: "fw", Chain: "fwd"}
	legacy = firewall.ID{Backend: firewall.Legacy, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"}
	legac6 = firewall.ID{Backend: firewall.Legacy, Family: firewall.IPv6, Table: "filter", Chain: "FORWARD"}
)

// TC45: a chain that drops is told of and left alone, or gets one accept, where that is asked for.
func TestDecide(t *testing.T) {
	type chains = []firewall.Chain
	type ids = []firewall.ID
	drops := func(id firewall.ID) firewall.Chain { return firewall.Chain{ID: id, Drops: true} }
	with := func(c firewall.Chain, n int, intact bool) firewall.Chain {
		c.Accepts, c.Intact = n, intact
		return c
	}
	open := func(id firewall.ID) firewall.Chain { return firewall.Chain{ID: id} }
	v4, both := firewall.Wants{IPv4: true}, firewall.Wants{IPv4: true, IPv6: true}
	asked := func(w firewall.Wants) firewall.Wants { w.Accept = true; return w }
	for name, c := range map[string]struct {
		found  chains
		record ids
		wants  firewall.Wants
		// + put in, - take out, ! warned of; in this order.
		want string
	}{
		"nothing there":                     {wants: both},
		"nothing drops":                     {found: chains{open(docker), open(legacy)}, wants: asked(both)},
		"reported, not touched":             {found: chains{drops(docker), drops(admin), drops(legacy)}, wants: both, want: "!" + docker.String() + " !" + admin.String() + " !" + legacy.String()},
		"IPv6 where there is none":          {found: chains{drops(docke6), drops(legac6)}, wants: v4},
		"IPv6 where there is":               {found: chains{drops(docke6), drops(legac6)}, wants: both, want: "!" + docke6.String() + " !" + legac6.String()},
		"inet concerns IPv4 alone too":      {found: chains{drops(admin)}, wants: v4, want: "!" + admin.String()},
		"inet concerns IPv6 alone too":      {found: chains{drops(admin)}, wants: firewall.Wants{IPv6: true}, want: "!" + admin.String()},
		"nothing is forwarded":              {found: chains{drops(docker), drops(admin)}, wants: firewall.Wants{Accept: true}},
		"asked for":                         {found: chains{drops(docker), open(admin), drops(legacy)}, wants: asked(v4), want: "+" + legacy.String() + " +" + docker.String()},
		"there already":                     {found: chains{with(drops(docker), 1, true)}, record: ids{docker}, wants: asked(v4)},
		"there already, record lost":        {found: chains{with(drops(docker), 1, true)}, wants: asked(v4)},
		"twice":                             {found: chains{with(drops(docker), 2, false)}, record: ids{docker}, wants: asked(v4), want: "+" + docker.String()},
		"altered":                           {found: chains{with(drops(docker), 1, false)}, record: ids{docker}, wants: asked(v4), want: "+" + docker.String()},
		"flushed":                           {found: chains{drops(docker)}, record: ids{docker}, wants: asked(v4), want: "+" + docker.String()},
		"no longer asked for":               {found: chains{with(drops(docker), 1, true)}, record: ids{docker}, wants: v4, want: "-" + docker.String() + " !" + docker.String()},
		"no longer asked for, record lost":  {found: chains{with(drops(docker), 1, true)}, wants: v4, want: "-" + docker.String() + " !" + docker.String()},
		"no longer drops":                   {found: chains{with(open(docker), 1, true)}, record: ids{docker}, wants: asked(v4), want: "-" + docker.String()},
		"no longer asked for, flushed":      {found: chains{open(docker)}, record: ids{docker}, wants: v4, want: "-" + docker.String()},
		"no longer a base chain":            {record: ids{admin, legacy}, wants: asked(v4), want: "-" + legacy.String() + " -" + admin.String()},
		"the mesh lost a family":            {found: chains{with(drops(legac6), 1, true)}, record: ids{legac6}, wants: asked(v4), want: "-" + legac6.String()},
		"one of two":                        {found: chains{with(drops(docker), 1, true), drops(legacy)}, record: ids{docker}, wants: asked(v4), want: "+" + legacy.String()},
		"nothing of ours, asked for, in v6": {found: chains{drops(docke6)}, wants: asked(both), want: "+" + docke6.String()},
	} {
		t.Run(name, func(t *testing.T) {
			changes, warnings := firewall.Decide(c.found, c.record, c.wants, "node/e1")
			var got []string
			record := c.record
			for _, change := range changes {
				got = append(got, map[bool]string{true: "+", false: "-"}[change.Accept]+change.Chain.String())
				record = firewall.Record(record, change)
			}
			for _, w := range warnings {
				chain, _, ok := strings.Cut(w.Message, " has policy drop")
				if !ok || w.Kind != firewall.ForwardDrop || w.Object != "node/e1" || !strings.Contains(w.Message, "--iptables-forward-rules") {
					t.Errorf("warning %s", w)
				}
				got = append(got, "!"+chain)
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			// Once done, there is nothing more to do.
			after := make(chains, 0, len(c.found))
			for _, chain := range c.found {
				for _, change := range changes {
					if change.Chain == chain.ID {
						chain.Accepts, chain.Intact = map[bool]int{true: 1}[change.Accept], change.Accept
					}
				}
				after = append(after, chain)
			}
			if again, _ := firewall.Decide(after, record, c.wants, "node/e1"); len(again) != 0 {
				t.Errorf("after that, again: %v", again)
			}
		})
	}
}

// What people see names the tool that shows the chain.
func TestNames(t *testing.T) {
	for id, want := range map[firewall.ID]string{
		docker: "chain FORWARD of nftables table ip filter",
		admin:  "chain fwd of nftables table inet fw",
		legacy: "chain FORWARD of table filter of iptables-legacy",
		legac6: "chain FORWARD of table filter of ip6tables-legacy",
	} {
		if got := fmt.Sprint(id); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if len(firewall.Comment) > 120 {
		t.Errorf("the comment has %d bytes", len(firewall.Comment))
	}
}
