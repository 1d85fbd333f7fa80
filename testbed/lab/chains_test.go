package lab

import (
	"slices"
	"strings"
	"testing"
)

func TestSortChainsKeepsRules(t *testing.T) {
	listing := strings.Split(strings.Trim(`
table ip nat {
	chain b {
		type nat hook output priority 0; policy accept;
		jump z
		jump a
	}
	set s {
		type ipv4_addr
	}
	chain a {
	}
}
table ip filter {
	chain c {
		accept
	}
}
`, "\n"), "\n")
	want := strings.Split(strings.Trim(`
table ip nat {
	chain a {
	}
	chain b {
		type nat hook output priority 0; policy accept;
		jump z
		jump a
	}
	set s {
		type ipv4_addr
	}
}
table ip filter {
	chain c {
		accept
	}
}
`, "\n"), "\n")
	if got := sortChains(listing); !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

func TestSortRulesKeepsTheOrderInsideAChain(t *testing.T) {
	got := sortRules([]string{
		"*nat", ":INPUT ACCEPT", ":A -", "-A INPUT -j Z", "-A A -j second", "-A INPUT -j B", "-A A -j first", "COMMIT",
		"*filter", ":X -", "-A X -j B", "COMMIT",
	})
	want := []string{
		"*nat", ":A -", ":INPUT ACCEPT", "-A A -j second", "-A A -j first", "-A INPUT -j Z", "-A INPUT -j B", "COMMIT",
		"*filter", ":X -", "-A X -j B", "COMMIT",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
