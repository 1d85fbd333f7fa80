package join

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
)

// changes returns the lines of WireGuard's configuration protocol that turn one
// set of peers into another; "" where there is nothing to do. An endpoint is said
// where it is new: a peer that was heard elsewhere since stays there.
func changes(before, after []render.Peer) string {
	var b strings.Builder
	old := map[model.Key]*render.Peer{}
	for i := range before {
		old[before[i].Key] = &before[i]
	}
	for i := range after {
		p := &after[i]
		was := old[p.Key]
		delete(old, p.Key)
		if was != nil && same(was, p) {
			continue
		}
		fmt.Fprintf(&b, "public_key=%s\n", hex.EncodeToString(p.Key[:]))
		secret := p.PresharedKey.Bytes()
		fmt.Fprintf(&b, "preshared_key=%s\n", hex.EncodeToString(secret[:]))
		if at := p.Endpoint.AddrPort(); at.IsValid() && (was == nil || was.Endpoint.AddrPort() != at) {
			fmt.Fprintf(&b, "endpoint=%s\n", at)
		}
		fmt.Fprintf(&b, "persistent_keepalive_interval=%d\nreplace_allowed_ips=true\n", p.KeepaliveSeconds())
		for _, prefix := range p.AllowedIPs {
			fmt.Fprintf(&b, "allowed_ip=%s\n", prefix)
		}
	}
	for i := range before {
		if _, gone := old[before[i].Key]; gone {
			fmt.Fprintf(&b, "public_key=%s\nremove=true\n", hex.EncodeToString(before[i].Key[:]))
		}
	}
	return b.String()
}

func same(a, b *render.Peer) bool {
	return a.PresharedKey == b.PresharedKey && a.Keepalive == b.Keepalive && slices.Equal(a.AllowedIPs, b.AllowedIPs) &&
		a.Endpoint.AddrPort() == b.Endpoint.AddrPort()
}
