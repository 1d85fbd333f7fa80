package render

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
)

// What is left after addresses were taken out of prefixes holds every other
// address, and holds it once.
func TestWithout(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	// All of 192.0.2.0/24, so that each address can be looked at.
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(256))}) }
	for range 500 {
		p := netip.PrefixFrom(address(), 24+random.IntN(9)).Masked()
		taken := []netip.Addr{address(), address(), netip.MustParseAddr("2001:db8::1")}
		rest := without([]netip.Prefix{p}, taken)
		for last := range 256 {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(last)})
			want := 0
			if p.Contains(a) && a != taken[0] && a != taken[1] {
				want = 1
			}
			got := 0
			for _, q := range rest {
				if q.Contains(a) {
					got++
				}
			}
			if got != want {
				t.Fatalf("%s without %v = %v holds %s %d times, want %d", p, taken, rest, a, got, want)
			}
		}
	}
	if got := fmt.Sprint(without([]netip.Prefix{netip.MustParsePrefix("2001:db8::8/126")}, addresses("2001:db8::b"))); got != "[2001:db8::8/127 2001:db8::a/128]" {
		t.Errorf("IPv6: got %s", got)
	}
}

// The preshared key is in the text that is asked for and in no other form.
func TestPresharedKeyShowsInTextOnly(t *testing.T) {
	secret := model.NewPresharedKey(key(88))
	c := Config{Peers: []Peer{{Key: key(8), PresharedKey: secret}}}
	const base64 = "WFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFg="
	if !strings.Contains(c.Text(), "PresharedKey = "+base64+"\n") {
		t.Errorf("the configuration lacks the preshared key:\n%s", c.Text())
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		text := fmt.Sprintf(verb, c)
		if strings.Contains(text, base64) || strings.Contains(text, "585858") || strings.Contains(text, "88 88") || strings.Contains(text, "0x58, 0x58") {
			t.Errorf("%s shows the preshared key: %s", verb, text)
		}
	}
}

// Whatever stands in an annotation stays inside its comment.
func TestCommentsHoldTheirLine(t *testing.T) {
	c := Config{
		Notes: []string{"location \n[Interface]\nPrivateKey = x\r\u0085y"},
		Peers: []Peer{{Comment: "a\nEndpoint = 192.0.2.1:1", Key: key(1), AllowedIPs: prefixes("10.0.0.0/8")}},
	}
	for line := range strings.SplitSeq(c.Text(), "\n") {
		if !strings.HasPrefix(line, "#") && (strings.Contains(line, "PrivateKey") || strings.Contains(line, "Endpoint") || strings.Contains(line, "[Interface]")) {
			t.Errorf("a comment became the line %q", line)
		}
	}
}
