package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMatrixForPeople(t *testing.T) {
	m := Matrix{Pairs: []Pair{
		{From: "pod-a1", To: "pod-a2", OK: true},
		{From: "pod-a1", To: "pod-b1", Addr: netip.MustParseAddr("10.244.3.2")},
		{From: "pod-a2", To: "pod-a1", OK: true},
		{From: "pod-a2", To: "pod-b1", OK: true},
		{From: "pod-b1", To: "pod-a1", OK: true},
		{From: "pod-b1", To: "pod-a2", OK: true},
	}}
	want := `from \ to  pod-a1  pod-a2  pod-b1
pod-a1     -       ok      FAIL  
pod-a2     ok      -       ok    
pod-b1     ok      ok      -     
failed: pod-a1 → pod-b1 (10.244.3.2)
5/6 pairs`
	if got := m.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if m.OK() {
		t.Error("OK with a failed pair")
	}
	if (Matrix{}).OK() {
		t.Error("OK without a trial")
	}
}

func TestParsePing(t *testing.T) {
	const text = `PING 10.244.3.2 (10.244.3.2) 56(84) bytes of data.
[1764540000.000000] 64 bytes from 10.244.3.2: icmp_seq=1 ttl=62 time=0.500 ms
[1764540000.100000] 64 bytes from 10.244.3.2: icmp_seq=2 ttl=62 time=0.500 ms
[1764540000.900000] 64 bytes from 10.244.3.2: icmp_seq=10 ttl=62 time=0.500 ms

--- 10.244.3.2 ping statistics ---
11 packets transmitted, 3 received, 72.7273% packet loss, time 1000ms
rtt min/avg/max/mdev = 0.500/0.500/0.500/0.000 ms
`
	got, err := parsePing(text, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got.Sent != 11 || got.Received != 3 || got.Lost() != 8 {
		t.Errorf("%+v", got)
	}
	if gap := got.LongestGap.Round(time.Millisecond); gap != 700*time.Millisecond {
		t.Errorf("longest gap %s, want 700ms", gap)
	}
	for what, answers := range map[string]string{"beginning": "8 9 10", "end": "1 2 3"} {
		text := ""
		for _, seq := range strings.Fields(answers) {
			text += fmt.Sprintf("[17645400%02s.0] 64 bytes from 10.244.3.2: icmp_seq=%s ttl=62 time=0.500 ms\n", seq, seq)
		}
		got, err := parsePing(text+"10 packets transmitted, 3 received, 70% packet loss, time 1000ms\n", time.Second)
		if err != nil || got.LongestGap != 7*time.Second {
			t.Errorf("seven requests lost at the %s: longest gap %s, want 7s (%v)", what, got.LongestGap, err)
		}
	}
	if _, err := parsePing("PING 10.244.3.2 (10.244.3.2) 56(84) bytes of data.\n", time.Second); err == nil {
		t.Error("no error for a ping that was killed")
	}
}

func TestNetStateDiff(t *testing.T) {
	before := NetState{[]NetSection{
		{"rules", []string{"0: local", "32766: main"}},
		{"routes", []string{"default", "10.0.0.0/24", "10.0.0.0/24"}},
		{"nftables", []string{"a", "b"}},
	}}
	if diff := before.Diff(before); diff != "" {
		t.Errorf("differs from itself:\n%s", diff)
	}
	after := NetState{[]NetSection{
		{"rules", []string{"0: local", "107: 1107", "32766: main"}},
		{"routes", []string{"default", "10.0.0.0/24"}},
		{"nftables", []string{"b", "a"}},
	}}
	want := `=== rules
+ 107: 1107
=== routes
- 10.0.0.0/24
=== nftables
(same lines in another order)
`
	if got := before.Diff(after); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestMetrics(t *testing.T) {
	series, err := parseMetrics(`# HELP kilo_errors_total Number of errors.
# TYPE kilo_errors_total counter
kilo_errors_total{event="publish"} 2
kilo_errors_total{event="the disk"} 1
kilo_leader 1
`)
	if err != nil {
		t.Fatal(err)
	}
	if series["kilo_leader"] != 1 || series[`kilo_errors_total{event="the disk"}`] != 1 || Sum(series, "kilo_errors_total") != 3 {
		t.Errorf("%v", series)
	}
}

// Where a cut is made, by who hides behind whom.
func TestCutPorts(t *testing.T) {
	spec, err := Default().Complete()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name     string
		from, to string
		want     map[port][]string
	}{
		{"two with a public leg", "a1", "b1", map[port][]string{
			{"router-a", "ingress", "a1"}: {"10.2.0.1", "198.51.100.21"},
			{"internet", "ingress", "a1"}: {"10.2.0.1", "198.51.100.21"},
		}},
		{"neighbours", "a3", "a1", map[port][]string{
			{"router-a", "ingress", "a3"}: {"10.1.0.1", "198.51.100.11"},
		}},
		{"from behind NAT", "c1", "a1", map[port][]string{
			{"router-c", "ingress", "c1"}: {"10.1.0.1", "198.51.100.11"},
		}},
		{"to one of two behind NAT", "a1", "c1", map[port][]string{
			{"router-a", "ingress", "a1"}: {"10.3.0.1"},
			{"internet", "ingress", "a1"}: {"10.3.0.1"},
			{"router-c", "egress", "c1"}:  {"198.51.100.11"},
		}},
		{"both behind NAT: all that hides with the other", "a3", "c1", map[port][]string{
			{"router-a", "ingress", "a3"}: {"10.3.0.1", spec.Locations[2].Router.String()},
		}},
	} {
		l := &Lab{Spec: spec, cuts: []Cut{{From: test.from, To: test.to}}}
		got := l.cutPorts()
		if len(got) != len(test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		for p, want := range test.want {
			var addrs []string
			for _, a := range got[p] {
				addrs = append(addrs, a.String())
			}
			if !slices.Equal(addrs, want) {
				t.Errorf("%s: %v: %v, want %v", test.name, p, addrs, want)
			}
		}
	}
}

func TestLastWords(t *testing.T) {
	for name, c := range map[string]struct{ log, want string }{
		"an error":               {"started\nkg: no kubeconfig\n", "kg: no kubeconfig"},
		"a panic, its goroutine": {"started\npanic: broken\n\ngoroutine 1 [running]:\nmain.main()\n\t/kg/main.go:1\n", "panic: broken\n\ngoroutine 1 [running]:\nmain.main()\n\t/kg/main.go:1"},
		"the last of two":        {"panic: first\nstarted\nfatal error: all goroutines are asleep - deadlock!\n", "fatal error: all goroutines are asleep - deadlock!"},
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(file); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
