package kernel

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/firewall"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/state"
)

// iptables are the programs whose chains these tests are about.
var iptables = append(slices.Clone(tools), "iptables-nft", "iptables-nft-save", "ip6tables-nft", "iptables-legacy", "iptables-legacy-save", "ip6tables-legacy-save")

// rulesets is everything that filters packets, as its owners see it.
const rulesets = `{ nft -s list ruleset; iptables-legacy-save; ip6tables-legacy-save; } | grep -v '^#'`

// A foreignFirewall drops what it does not know.
type foreignFirewall struct {
	name, make string
	chain      firewall.ID
	// save shows the chain's rules, one a line.
	save string
	// flush takes every rule out of the chain.
	flush string
}

var foreignFirewalls = []foreignFirewall{
	{"nft", `
		nft add table inet fw
		nft add set inet fw lan '{ type ipv4_addr; flags interval; elements = { 192.168.0.0/16 } }'
		nft add chain inet fw foreign '{ type filter hook forward priority 5; policy drop; }'
		nft add rule inet fw foreign ip saddr @lan ip daddr @lan accept
		nft add rule inet fw foreign ct state established,related counter accept
		nft add rule inet fw foreign tcp dport vmap '{ 22 : accept, 23 : drop }'`,
		firewall.ID{Backend: firewall.NFT, Family: firewall.Both, Table: "fw", Chain: "foreign"},
		`nft list chain inet fw foreign | sed -n 's/^\t\t//p' | tail -n +2`, "nft flush chain inet fw foreign"},
	{"nft, IPv6", `
		nft add table ip6 fw
		nft add chain ip6 fw forward '{ type filter hook forward priority -10; policy drop; }'
		nft add rule ip6 fw forward ip6 saddr fd00:1::/64 accept`,
		firewall.ID{Backend: firewall.NFT, Family: firewall.IPv6, Table: "fw", Chain: "forward"},
		`nft list chain ip6 fw forward | sed -n 's/^\t\t//p' | tail -n +2`, "nft flush chain ip6 fw forward"},
	{"iptables-nft", `
		iptables-nft -N DOCKER-USER
		iptables-nft -A DOCKER-USER -j RETURN
		iptables-nft -P FORWARD DROP
		iptables-nft -A FORWARD -j DOCKER-USER
		iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		iptables-nft -A FORWARD -s 172.17.0.0/16 -m comment --comment "from containers" -j ACCEPT`,
		firewall.ID{Backend: firewall.NFT, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"},
		"iptables-nft-save | grep -e '-A FORWARD'", "iptables-nft -F FORWARD"},
	{"iptables-legacy", `
		iptables-legacy -N DOCKER-USER
		iptables-legacy -N LOG-DROP
		iptables-legacy -A LOG-DROP -m limit --limit 3/min
		iptables-legacy -A LOG-DROP -j DROP
		iptables-legacy -A DOCKER-USER -p tcp --dport 25 -g LOG-DROP
		iptables-legacy -A DOCKER-USER -j RETURN
		iptables-legacy -P FORWARD DROP
		iptables-legacy -A INPUT -p icmp
		iptables-legacy -A INPUT -j DOCKER-USER
		iptables-legacy -A FORWARD -j DOCKER-USER
		iptables-legacy -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		iptables-legacy -A FORWARD -s 172.17.0.0/16 -m comment --comment "from containers" -j ACCEPT
		iptables-legacy -A FORWARD -p icmp
		iptables-legacy -A OUTPUT -j DOCKER-USER`,
		firewall.ID{Backend: firewall.Legacy, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"},
		"iptables-legacy-save | grep -e '-A FORWARD'", "iptables-legacy -F FORWARD"},
	{"iptables-legacy, nothing but the policy", `iptables-legacy -P FORWARD DROP`,
		firewall.ID{Backend: firewall.Legacy, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"},
		"iptables-legacy-save | grep -e '-A FORWARD'", "iptables-legacy -F FORWARD"},
	{"ip6tables-legacy", `
		ip6tables-legacy -P FORWARD DROP
		ip6tables-legacy -A FORWARD -p ipv6-icmp -j ACCEPT
		ip6tables-legacy -A FORWARD -s fd00:1::/64 -j ACCEPT
		ip6tables-legacy -A OUTPUT -p udp -j ACCEPT`,
		firewall.ID{Backend: firewall.Legacy, Family: firewall.IPv6, Table: "filter", Chain: "FORWARD"},
		"ip6tables-legacy-save | grep -e '-A FORWARD'", "ip6tables-legacy -F FORWARD"},
}

// found returns the chain as Chains sees it.
func found(t *testing.T, f *Forward, id firewall.ID) firewall.Chain {
	t.Helper()
	all, err := f.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(c firewall.Chain) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("%s is not among %v", id, all)
	}
	return all[i]
}

// Our accept goes to the beginning of a chain that drops, whoever's it is, is
// seen there by the owner's tool, and taken out leaves everything as it was.
func TestAcceptInForeignChain(t *testing.T) {
	for _, c := range foreignFirewalls {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				nstest.Sh(t, c.make)
				before := nstest.Sh(t, rulesets)
				f := NewForward(nil)
				ctx := t.Context()
				if got := found(t, f, c.chain); !got.Drops || got.Accepts != 0 || got.Intact {
					t.Errorf("at first: %+v", got)
				}
				if after := nstest.Sh(t, rulesets); after != before {
					t.Fatalf("looking changed it:\n%s\nbefore:\n%s", after, before)
				}
				isIn := func(what string) {
					t.Helper()
					if got := found(t, f, c.chain); !got.Drops || got.Accepts != 1 || !got.Intact {
						t.Errorf("%s: %+v", what, got)
					}
					first, _, _ := strings.Cut(nstest.Sh(t, c.save), "\n")
					nft := fmt.Sprintf(`meta mark & 0x%08x == 0x%08x accept comment "%s"`, state.MarkForwarded, state.MarkForwarded, firewall.Comment)
					mark, said := fmt.Sprintf("-m mark --mark %#x/%#x", state.MarkForwarded, state.MarkForwarded), fmt.Sprintf(`-m comment --comment "%s"`, firewall.Comment)
					if first != nft && first != "-A FORWARD "+said+" "+mark+" -j ACCEPT" && first != "-A FORWARD "+mark+" "+said+" -j ACCEPT" {
						t.Errorf("%s: the first rule is %s", what, first)
					}
				}
				put, take := firewall.Change{Chain: c.chain, Accept: true}, firewall.Change{Chain: c.chain}
				for _, what := range []string{"put in", "again"} {
					if err := f.Apply(ctx, put); err != nil {
						t.Fatal(err)
					}
					isIn(what)
				}
				nstest.Sh(t, c.flush)
				if got := found(t, f, c.chain); got.Accepts != 0 || got.Intact {
					t.Errorf("flushed: %+v", got)
				}
				if err := f.Apply(ctx, put); err != nil {
					t.Fatal(err)
				}
				isIn("after a flush")
				nstest.Sh(t, c.flush+"; nft flush ruleset; for v in '' 6; do ip${v}tables-legacy -F; ip${v}tables-legacy -X; done; "+c.make)

				// As it was, but for us.
				if err := f.Apply(ctx, put); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := f.Apply(ctx, take); err != nil {
						t.Fatal(err)
					}
				}
				if got := found(t, f, c.chain); got.Accepts != 0 {
					t.Errorf("taken out: %+v", got)
				}
				if after := nstest.Sh(t, rulesets); rulesOf(after) != rulesOf(before) {
					t.Errorf("left:\n%s\nbefore:\n%s", after, before)
				}
			}, iptables...)
		})
	}
}

// rulesOf leaves out counters, and the empty tables of iptables-legacy
// that the test's own flushing has made.
func rulesOf(text string) string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, " [")
		if !slices.Contains([]string{"*filter", "COMMIT", ":INPUT ACCEPT", ":OUTPUT ACCEPT", ":FORWARD ACCEPT"}, line) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// What others have of the rules stays theirs: jumps, gotos and rules without a
// target lead where they led, and counters go on.
func TestLegacyRulesStayWhole(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := foreignFirewalls[3]
		nstest.Sh(t, c.make)
		nstest.Sh(t, "ping -c 3 -i 0.01 -W 1 127.0.0.1") // INPUT counts
		counted := func() string {
			return nstest.Sh(t, "iptables-legacy-save -c | grep -v -e '^#' -e 'kg --iptables'")
		}
		before := counted()
		if !strings.Contains(before, "[6:504] -A INPUT -p icmp") {
			t.Fatalf("nothing was counted:\n%s", before)
		}
		f := NewForward(nil)
		for _, put := range []bool{true, true, false} {
			if err := f.Apply(t.Context(), firewall.Change{Chain: c.chain, Accept: put}); err != nil {
				t.Fatal(err)
			}
			if after := counted(); after != before {
				t.Errorf("put in %v:\n%s\nbefore:\n%s", put, after, before)
			}
		}
	}, append(slices.Clone(iptables), "ping")...)
}

// Whoever saves and restores his rules has a rule of ours that is as good; one
// that was altered, or stands twice, is not.
func TestAcceptThatIsNotIntact(t *testing.T) {
	nft := `nft insert rule ip filter FORWARD meta mark and 0x1000 == 0x1000 %s comment '"` + firewall.Comment + `"'`
	legacy := `iptables-legacy -I FORWARD %s -m comment --comment '` + firewall.Comment + `' -j %s`
	for _, c := range []struct {
		name, edit string
		backend    firewall.Backend
		accepts    int
		intact     bool
	}{
		{"saved and restored", `iptables-nft-save >/run/rules; nft flush ruleset; iptables-nft-restore </run/rules`, firewall.NFT, 1, true},
		{"something before it", "iptables-nft -I FORWARD -s 203.0.113.9 -j DROP", firewall.NFT, 1, true},
		{"twice", fmt.Sprintf(nft, "accept"), firewall.NFT, 2, false},
		{"altered", "nft flush chain ip filter FORWARD; " + fmt.Sprintf(nft, "drop"), firewall.NFT, 1, false},
		{"another comment", "nft flush chain ip filter FORWARD; nft insert rule ip filter FORWARD meta mark and 0x1000 == 0x1000 accept comment mine", firewall.NFT, 0, false},
		{"legacy: saved and restored", `iptables-legacy-save >/run/rules; iptables-legacy -F; iptables-legacy-restore </run/rules`, firewall.Legacy, 1, true},
		{"legacy: something before it", "iptables-legacy -I FORWARD -s 203.0.113.9 -j DROP", firewall.Legacy, 1, true},
		{"legacy: twice", fmt.Sprintf(legacy, "-m mark --mark 0x1000/0x1000", "ACCEPT"), firewall.Legacy, 2, false},
		{"legacy: altered", "iptables-legacy -F FORWARD; " + fmt.Sprintf(legacy, "-p tcp", "ACCEPT"), firewall.Legacy, 1, false},
		{"legacy: another verdict", "iptables-legacy -F FORWARD; " + fmt.Sprintf(legacy, "-m mark --mark 0x1000/0x1000", "DROP"), firewall.Legacy, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				nstest.Sh(t, "iptables-nft -P FORWARD DROP; iptables-legacy -P FORWARD DROP")
				f := NewForward(nil)
				id := firewall.ID{Backend: c.backend, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"}
				if err := f.Apply(t.Context(), firewall.Change{Chain: id, Accept: true}); err != nil {
					t.Fatal(err)
				}
				nstest.Sh(t, c.edit)
				if got := found(t, f, id); got.Accepts != c.accepts || got.Intact != c.intact {
					t.Errorf("%+v, want %d, intact %v", got, c.accepts, c.intact)
				}
				// In any case it can be mended, and taken out.
				for _, put := range []bool{true, false} {
					if err := f.Apply(t.Context(), firewall.Change{Chain: id, Accept: put}); err != nil {
						t.Fatal(err)
					}
					if got := found(t, f, id); got.Intact != put || got.Accepts != map[bool]int{true: 1}[put] {
						t.Errorf("put in %v: %+v", put, got)
					}
				}
			}, iptables...)
		})
	}
}

// Ours, and chains of other hooks, are not among those of others; nor are tables
// of iptables-legacy that are not there, which looking must not make.
func TestForwardChainsOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, `
			nft add table inet kilo; nft add chain inet kilo clamp '{ type filter hook forward priority 0; policy accept; }'
			nft add table inet fw
			nft add chain inet fw input '{ type filter hook input priority 0; policy drop; }'
			nft add chain inet fw plain
			nft add table bridge fw; nft add chain bridge fw forward '{ type filter hook forward priority 0; policy drop; }'
			nft add table ip kilo; nft add chain ip kilo forward '{ type filter hook forward priority 0; policy accept; }'`)
		got, err := NewForward(nil).Chains(t.Context())
		if err != nil || len(got) != 1 || got[0].ID != (firewall.ID{Backend: firewall.NFT, Family: firewall.IPv4, Table: "kilo", Chain: "forward"}) || got[0].Drops {
			t.Errorf("%+v (%v)", got, err)
		}
		if names, err := os.ReadFile("/proc/net/ip_tables_names"); err != nil || len(names) != 0 {
			t.Errorf("tables of iptables-legacy: %q (%v)", names, err)
		}
		// Gone: nothing to take out, and nowhere to put in.
		for _, id := range []firewall.ID{
			{Backend: firewall.NFT, Family: firewall.IPv4, Table: "gone", Chain: "c"},
			{Backend: firewall.NFT, Family: firewall.Both, Table: "fw", Chain: "gone"},
			{Backend: firewall.Legacy, Family: firewall.IPv6, Table: "filter", Chain: "FORWARD"},
		} {
			if err := NewForward(nil).Apply(t.Context(), firewall.Change{Chain: id}); err != nil {
				t.Errorf("taken out of one that is gone: %v", err)
			}
			if err := NewForward(nil).Apply(t.Context(), firewall.Change{Chain: id, Accept: true}); err == nil || !strings.Contains(err.Error(), id.String()) {
				t.Errorf("put into one that is gone: %v", err)
			}
		}
	}, iptables...)
}

// A table that somebody changes is not changed at the same time.
func TestXtablesLock(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, "iptables-legacy -P FORWARD DROP")
		id := firewall.ID{Backend: firewall.Legacy, Family: firewall.IPv4, Table: "filter", Chain: "FORWARD"}
		held, err := os.OpenFile(xtablesLock, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		f := NewForward(nil)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := f.Apply(ctx, firewall.Change{Chain: id, Accept: true}); err == nil || !strings.Contains(err.Error(), xtablesLock) {
			t.Errorf("with the lock held by another: %v", err)
		}
		if got := found(t, f, id); got.Accepts != 0 {
			t.Errorf("changed all the same: %+v", got)
		}
		go func() {
			time.Sleep(200 * time.Millisecond)
			held.Close()
		}()
		if err := f.Apply(t.Context(), firewall.Change{Chain: id, Accept: true}); err != nil {
			t.Error(err)
		}
	}, iptables...)
}

// News comes of chains that appear, change their policy or lose our rule, and
// not of what others do in chains of their own.
func TestWatchForward(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, `nft add table ip other; nft add chain ip other c; nft add chain ip other nat '{ type nat hook postrouting priority 100; }'`)
		f := NewForward(nil)
		ctx, cancel := context.WithCancel(t.Context())
		news := make(chan struct{}, 100)
		done := make(chan error, 1)
		go func() { done <- f.Watch(ctx, func() { news <- struct{}{} }) }()
		heard := func(limit time.Duration) bool {
			select {
			case <-news:
			case <-time.After(limit):
				return false
			}
			for settled := false; !settled; {
				select {
				case <-news:
				case <-time.After(100 * time.Millisecond):
					settled = true
				}
			}
			// Whoever hears something looks.
			if _, err := f.Chains(ctx); err != nil {
				t.Fatal(err)
			}
			return true
		}
		if !heard(5 * time.Second) {
			t.Fatal("not a word at the beginning")
		}
		for _, quiet := range []string{
			"nft add rule ip other c counter drop", "nft flush chain ip other c", "nft add chain ip other more", "nft delete chain ip other more",
			"nft add chain ip other nat2 '{ type nat hook postrouting priority 101; }'", "nft delete chain ip other nat2",
		} {
			nstest.Sh(t, quiet)
			if heard(300 * time.Millisecond) {
				t.Errorf("%s: none of our business", quiet)
			}
		}
		for _, loud := range []string{
			"nft add chain ip other forward '{ type filter hook forward priority 0; policy accept; }'",
			"nft add chain ip other forward '{ policy drop; }'",
			"iptables-nft -P FORWARD DROP",
			"nft insert rule ip other forward accept; nft flush chain ip other forward",
			"nft delete chain ip other forward",
		} {
			nstest.Sh(t, loud)
			if !heard(2 * time.Second) {
				t.Errorf("%s: not heard", loud)
			}
		}
		nstest.Sh(t, "iptables-legacy -P FORWARD DROP")
		if !heard(legacyEvery + 2*time.Second) {
			t.Error("iptables-legacy: not heard")
		}
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("ended with %v", err)
		}
	}, iptables...)
}
