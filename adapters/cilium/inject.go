package cilium

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

const (
	// vxlanID and vxlanPort are the mesh's own: Cilium's tunnel is at UDP port
	// 8472, and the kernel lets no link share its port with one of Cilium's kind.
	vxlanID   = 1107
	vxlanPort = 8473
	// What VXLAN adds, in bytes, over IPv4 and over IPv6.
	vxlanOverhead4 = 50
	vxlanOverhead6 = 70
)

// Inject implements adapter.Adapter: a member's ways to other locations lead to
// its gateway, and a serving gateway's ways back to its members the same way, so
// that each sees what comes from where it would send to.
//
// An error says for which node there is no way; the Additions that come with it
// hold for all others.
func (a *Adapter) Inject(v adapter.View, f adapter.Facts) (adapter.Additions, error) {
	w := ways{view: &v, encapsulation: a.o.Encapsulation, errs: &multierror.Error{ErrorFormat: oneLine}}
	switch {
	case v.Serving:
		for i := range v.Members {
			w.back(&v.Members[i], f.NodesOnly)
		}
	case v.Gateway != nil && v.Gateway.Name != v.Self.Name && len(v.Remote) > 0:
		w.there()
	}
	return w.add, w.errs.ErrorOrNil()
}

// ways collects what one node needs.
type ways struct {
	view          *adapter.View
	encapsulation Encapsulation
	add           adapter.Additions
	errs          *multierror.Error
}

func (w *ways) fail(format string, args ...any) {
	w.errs = multierror.Append(w.errs, fmt.Errorf(format, args...))
}

// there leads a member's traffic for other locations to the gateway.
func (w *ways) there() {
	var hops [2]*hop // IPv4, IPv6; nil: not asked for yet
	for i := range w.view.Remote {
		r := &w.view.Remote[i]
		v4, family := r.Prefix.Addr().Is4(), 1
		if v4 {
			family = 0
		}
		if hops[family] == nil {
			h, err := w.to(w.view.Gateway, v4)
			if err != nil {
				w.fail("gateway: %w", err)
			}
			hops[family] = &h
		}
		if h := hops[family]; h.device != "" {
			w.route(state.TableOverlay, r.Prefix, *h, w.view.Self.InternalIP(v4), r.MTU)
		}
	}
}

// back leads what comes out of the tunnel for a member to it: for its own
// addresses, and for its pods where these cross locations as themselves.
func (w *ways) back(m *model.Node, nodesOnly bool) {
	for _, v4 := range []bool{true, false} {
		ip := m.InternalIP(v4)
		if !ip.IsValid() {
			continue
		}
		h, err := w.to(m, v4)
		if err != nil {
			w.fail("member: %w", err)
			continue
		}
		w.route(state.TableReturn, netip.PrefixFrom(ip, ip.BitLen()), h, netip.Addr{}, 0)
		if nodesOnly || m.NodesOnly {
			continue
		}
		for _, p := range m.PodPrefixes {
			if p.Addr().Is4() == v4 {
				w.route(state.TableReturn, p.Masked(), h, netip.Addr{}, 0)
			}
		}
	}
}

func (w *ways) route(table int, dst netip.Prefix, h hop, source netip.Addr, mtu int) {
	if mtu == 0 || h.mtu < mtu {
		mtu = h.mtu
	}
	w.add.Routes = append(w.add.Routes, state.Route{
		Table: table, Dst: dst, Type: state.Unicast,
		Via: h.via, Device: h.device, OnLink: h.onLink, Source: source, MTU: mtu,
	})
}

// hop is the next hop to a node of the location.
type hop struct {
	via    netip.Addr
	device string
	onLink bool
	mtu    int // bytes
}

// to returns the next hop to a node: its own internal address, on the LAN or
// inside the VXLAN.
func (w *ways) to(n *model.Node, v4 bool) (hop, error) {
	lan, ip := w.view.LAN, n.InternalIP(v4)
	switch {
	case !ip.IsValid():
		return hop{}, fmt.Errorf("%s has no internal address of that family", n.Name)
	case lan.Device == "":
		return hop{}, fmt.Errorf("no interface of this node has its internal address, so it is not known how %s is reached", n.Name)
	case w.encapsulation != Always && neighbours(&w.view.Self, n, v4):
		return hop{via: ip, device: lan.Device, mtu: lan.MTU}, nil
	case w.encapsulation == Never:
		return hop{}, fmt.Errorf("%s (%s) shares no subnet with this node, so --encapsulate=never leaves no way to it: use crosssubnet or always", n.Name, ip)
	}
	link, err := w.vxlan()
	if err != nil {
		return hop{}, err
	}
	outer := n.InternalIP(link.VXLAN.Local.Is4())
	if !outer.IsValid() {
		return hop{}, fmt.Errorf("%s has no address of the family of %s", n.Name, link.VXLAN.Local)
	}
	link.VXLAN.Remotes = append(link.VXLAN.Remotes, state.VXLANRemote{Inner: ip, MAC: mac(outer), Outer: outer})
	return hop{via: ip, device: link.Name, onLink: true, mtu: link.MTU}, nil
}

// vxlan returns the encapsulation link, which stands from the first use on.
func (w *ways) vxlan() (*state.Link, error) {
	if len(w.add.Links) > 0 {
		return &w.add.Links[0], nil
	}
	local, overhead := w.view.Self.InternalIP(true), vxlanOverhead4
	if !local.IsValid() {
		local, overhead = w.view.Self.InternalIP(false), vxlanOverhead6
	}
	if !local.IsValid() {
		return nil, fmt.Errorf("this node has no internal address for %s to send from", state.VXLANLink)
	}
	w.add.Links = []state.Link{{
		Name: state.VXLANLink, Kind: state.VXLAN, MTU: w.view.LAN.MTU - overhead,
		VXLAN: &state.VXLANConfig{ID: vxlanID, Port: vxlanPort, Device: w.view.LAN.Device, Local: local, MAC: mac(local)},
	}}
	return &w.add.Links[0], nil
}

// neighbours tells whether two nodes both see the other in their own subnet. A
// length that is not known proves nothing.
func neighbours(a, b *model.Node, v4 bool) bool {
	sees := func(a, b *model.Node) bool {
		for _, p := range a.InternalIPs {
			if p.Addr().Is4() == v4 && !p.IsSingleIP() && p.Contains(b.InternalIP(v4)) {
				return true
			}
		}
		return false
	}
	return sees(a, b) && sees(b, a)
}

// mac is the address of a node's end of the VXLAN: every node works out that of
// every other. A locally administered one, of the node's IPv4 address as it is,
// or of an IPv6 address's hash.
func mac(a netip.Addr) string {
	var four [4]byte
	if a.Is4() {
		four = a.As4()
	} else {
		h := fnv.New32a()
		_, _ = h.Write(a.AsSlice()) // never fails
		copy(four[:], h.Sum(nil))
	}
	return net.HardwareAddr{0x02, 0x6b, four[0], four[1], four[2], four[3]}.String()
}

// oneLine prints errors the way that warnings are shown.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}
