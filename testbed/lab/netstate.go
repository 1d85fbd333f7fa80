package lab

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// NetState is everything in a machine's network configuration that anybody
// could have changed, as text without counters and timers, so that two of them
// from different times can be compared.
type NetState struct {
	Sections []NetSection
}

// NetSection is the output of one command.
type NetSection struct {
	Name  string
	Lines []string
}

// netSections are the commands, and how their lines are brought into an order
// where the kernel's means nothing.
func netSections() []struct {
	name, script string
	order        func([]string) []string
} {
	sorted := func(lines []string) []string { return slices.Sorted(slices.Values(lines)) }
	asIs := func(lines []string) []string { return lines }
	return []struct {
		name, script string
		order        func([]string) []string
	}{
		{"rules", "ip -4 rule; ip -6 rule", asIs},
		{"main", "ip -4 route show table main; ip -6 route show table main", sorted},
		{"routes", "ip -4 route show table all; ip -6 route show table all", sorted},
		{"links", "ip -o link", asIs},
		{"addresses", "ip -o addr", asIs},
		{"neighbours", "ip neigh show nud permanent", sorted},
		{"forwarding database", "bridge fdb show | grep -w permanent || true", sorted},
		{"nftables", "nft -s list ruleset", sortChains},
		{"iptables (nft)", "iptables-nft-save 2>/dev/null; ip6tables-nft-save 2>/dev/null", sortRules},
		{"iptables (legacy)", "iptables-legacy-save; ip6tables-legacy-save", sortRules},
		{"ipsets", "ipset save 2>/dev/null || true", sorted},
		{"pinned BPF objects", "find /sys/fs/bpf -type f 2>/dev/null || true", sorted},
		{"sysctls", "sysctl -a -r '^net[.](ipv4|ipv6|bridge|core|netfilter)[.]' 2>/dev/null", sorted},
	}
}

// Counters and times, which change without anybody changing anything.
var (
	chainCounters = regexp.MustCompile(` \[\d+:\d+\]$`)
	volatileLine  = regexp.MustCompile(`^# |nf_conntrack_count|\.(ip_local_reserved|tcp_fastopen_key|stable_secret)|^net\.ipv4\.tcp_available`)
	lifetimes     = regexp.MustCompile(` (expires \d+sec|valid_lft \S+ preferred_lft \S+)`)
)

// NetState reads the machine's network configuration. It waits until the kernel
// is done with IPv6 addresses that it still checks for duplicates.
func (m *Machine) NetState(ctx context.Context) (NetState, error) {
	var s NetState
	if _, err := m.Shell(ctx, `
		for i in $(seq 50); do
			[ -z "$(ip -6 addr show tentative)" ] && break
			sleep 0.1
		done
	`); err != nil {
		return s, err
	}
	for _, section := range netSections() {
		out, err := m.Shell(ctx, section.script)
		if err != nil {
			return s, err
		}
		var lines []string
		for _, line := range nonEmpty(strings.Split(out, "\n")) {
			if volatileLine.MatchString(line) {
				continue
			}
			line = chainCounters.ReplaceAllString(line, "")
			line = lifetimes.ReplaceAllString(line, "")
			lines = append(lines, strings.TrimRight(line, " "))
		}
		s.Sections = append(s.Sections, NetSection{section.name, section.order(lines)})
	}
	return s, nil
}

// Section is one of them; nil if there is none of that name.
func (s NetState) Section(name string) []string {
	for _, x := range s.Sections {
		if x.Name == name {
			return x.Lines
		}
	}
	return nil
}

func (s NetState) String() string {
	var b strings.Builder
	for _, x := range s.Sections {
		fmt.Fprintf(&b, "=== %s\n%s\n", x.Name, strings.Join(x.Lines, "\n"))
	}
	return b.String()
}

// Diff tells what is in one state and not in the other, line by line: "+" is
// new in after, "-" is gone. It is empty for equal states. A change of order
// alone shows as one line of its own.
func (s NetState) Diff(after NetState) string {
	var b strings.Builder
	for _, x := range s.Sections {
		now := after.Section(x.Name)
		if slices.Equal(x.Lines, now) {
			continue
		}
		var changes []string
		for _, l := range missing(x.Lines, now) {
			changes = append(changes, "- "+l)
		}
		for _, l := range missing(now, x.Lines) {
			changes = append(changes, "+ "+l)
		}
		if changes == nil {
			changes = []string{"(same lines in another order)"}
		}
		fmt.Fprintf(&b, "=== %s\n%s\n", x.Name, strings.Join(changes, "\n"))
	}
	return b.String()
}

// Only returns the named sections, to compare a part.
func (s NetState) Only(names ...string) NetState {
	return NetState{slices.DeleteFunc(slices.Clone(s.Sections), func(x NetSection) bool { return !slices.Contains(names, x.Name) })}
}

// missing lists the lines of a that b lacks, counting repetitions.
func missing(a, b []string) []string {
	count := map[string]int{}
	for _, l := range b {
		count[l]++
	}
	var out []string
	for _, l := range a {
		if count[l]--; count[l] < 0 {
			out = append(out, l)
		}
	}
	return out
}
