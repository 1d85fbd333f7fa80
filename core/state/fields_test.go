package state_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/state"
)

// notCompared are the fields that make no difference to Diff.
var notCompared = map[string]string{
	"Peer.Name":  "for people",
	"Peer.Alive": "decides about the endpoint alone",
	"Peer.Moved": "decides about the endpoint alone",
}

// filled has every field of every type of this package set, but for Alive and
// Down, which are found and not wanted.
func filled() state.State {
	addr := netip.MustParseAddr
	prefix := netip.MustParsePrefix
	var rules []state.FilterRule
	for _, m := range []state.Match{
		state.InInterface{Name: "a", Not: true},
		state.OutInterface{Name: "a", Not: true},
		state.AddrInSet{V6: true, Source: true, Not: true, Set: "s"},
		state.AddrIs{Source: true, Not: true, Prefix: prefix("10.0.0.0/24")},
		state.NextHop{Not: true, Addr: addr("10.0.0.1")},
		state.MarkIs{Not: true, Mark: 1},
		state.L4Proto{Proto: "tcp"},
		state.Port{Proto: "tcp", Source: true, Port: 1},
		state.TCPSyn{},
		state.CtState{States: []string{"established", "new"}},
		state.CtStatus{Not: true, Flag: "snat"},
		state.CtOriginal{},
		state.SourceLocal{Not: true},
		state.Unknown{Text: "a"},
	} {
		rules = append(rules, state.FilterRule{Matches: []state.Match{m}, Action: state.Drop{}, Comment: "a"})
	}
	for _, a := range []state.Action{
		state.Accept{}, state.Drop{}, state.Return{}, state.ResetTCP{}, state.SourceNAT{To: addr("10.0.0.1")},
		state.KeepSource{V6: true}, state.Masquerade{}, state.ClampMSS{}, state.AddMark{Bits: 1}, state.TakeMark{Bits: 1}, state.NoTrack{}, state.Unknown{Text: "a"},
	} {
		rules = append(rules, state.FilterRule{Matches: []state.Match{state.CtOriginal{}}, Action: a, Comment: "a"})
	}
	return state.State{
		Links: []state.Link{
			{Name: "kilo-vxlan", Kind: state.VXLAN, MTU: 1370, Loose: true, Addresses: []netip.Prefix{prefix("10.4.0.3/32")}, VXLAN: &state.VXLANConfig{
				ID: 7, Port: 8473, Device: "eth0", Local: addr("10.0.0.1"), MAC: "02:00:00:00:00:03",
				Remotes: []state.VXLANRemote{{Inner: addr("10.4.0.2"), MAC: "02:00:00:00:00:01", Outer: addr("10.0.0.2")}},
			}},
			{Name: "kilo0", Kind: state.WireGuard, MTU: 1420, Loose: true, Addresses: []netip.Prefix{prefix("10.4.0.1/32")}, Tunnel: &state.Tunnel{
				Key: model.Key{1}, Port: 51820, Mark: state.Mark,
				Peers: []state.Peer{{
					Name: "node/w1", Key: model.Key{2}, PresharedKey: model.NewPresharedKey([32]byte{3}),
					Endpoint: netip.MustParseAddrPort("203.0.113.9:51820"), AllowedIPs: []netip.Prefix{prefix("10.244.9.0/24")}, Keepalive: time.Second,
				}},
			}},
		},
		Routes: []state.Route{{
			Table: 1107, Dst: prefix("10.244.9.0/24"), Type: state.Unicast, Via: addr("10.4.0.2"), Device: "kilo0",
			OnLink: true, Source: addr("10.0.0.1"), MTU: 1420, Metric: 1,
		}},
		Rules: []state.Rule{{
			Priority: 107, V6: true, Invert: true, Mark: 0x1000, From: addr("10.0.0.1"), IIF: "kilo0", Proto: "udp", SrcPort: 1, DstPort: 2, Table: 1107,
		}},
		Filter: state.Filter{
			Sets:   []state.Set{{Name: "s", V6: true, Elements: []netip.Prefix{prefix("fd00:9::/64")}}},
			Chains: []state.Chain{{Name: "guard", Type: state.FilterChain, Hook: "forward", Priority: 1, Rules: rules}},
		},
	}
}

// Nobody can add a field and forget that States are compared.
func TestEveryFieldMakesADifference(t *testing.T) {
	seen := map[string]bool{}
	for n := 0; ; n++ {
		changed := filled()
		w := fields{nth: n, seen: seen}
		w.visit(reflect.ValueOf(&changed).Elem(), "State")
		if w.changed == "" {
			if n < 60 {
				t.Fatalf("only %d fields visited", n)
			}
			break
		}
		if _, ok := notCompared[w.changed]; ok {
			if d := state.Diff(filled(), changed); d != nil {
				t.Errorf("%s makes a difference: %v", w.changed, d)
			}
			continue
		}
		if d := state.Diff(filled(), changed); len(d) == 0 {
			t.Errorf("%s differs, and Diff sees nothing", w.changed)
		}
		if d := state.Diff(changed, filled()); len(d) == 0 {
			t.Errorf("%s differed, and Diff sees nothing", w.changed)
		}
	}
	for _, name := range words(t) {
		if !seen[name] {
			t.Errorf("%s is not in filled", name)
		}
	}
	// A field that nobody fills is not visited in earnest.
	w := fields{nth: -1, seen: seen, zero: func(field string) {
		if field != "Peer.Alive" && field != "Peer.Moved" && field != "Link.Down" && field != "Link.Tunnel" && field != "Link.VXLAN" {
			t.Errorf("%s is not set in filled", field)
		}
	}}
	whole := filled()
	w.visit(reflect.ValueOf(&whole).Elem(), "State")
}

// fields walks a value and changes its nth field.
type fields struct {
	nth     int
	seen    map[string]bool // types
	changed string          // the field, as Type.Field
	zero    func(field string)
}

// leaves are the types that are changed as a whole.
var leaves = map[reflect.Type]func(any) any{
	reflect.TypeFor[netip.Addr]():         func(v any) any { return v.(netip.Addr).Next() },
	reflect.TypeFor[netip.AddrPort]():     func(v any) any { return netip.AddrPortFrom(v.(netip.AddrPort).Addr(), 1) },
	reflect.TypeFor[model.Key]():          func(v any) any { k := v.(model.Key); k[31]++; return k },
	reflect.TypeFor[model.PresharedKey](): func(any) any { return model.PresharedKey{} },
	reflect.TypeFor[time.Duration]():      func(v any) any { return v.(time.Duration) + time.Second },
	reflect.TypeFor[netip.Prefix](): func(v any) any {
		return netip.PrefixFrom(v.(netip.Prefix).Addr(), v.(netip.Prefix).Bits()-1).Masked()
	},
	reflect.TypeFor[string](): func(v any) any { return v.(string) + "x" },
	reflect.TypeFor[bool]():   func(v any) any { return !v.(bool) },
}

func (f *fields) visit(v reflect.Value, field string) {
	if f.zero != nil && v.IsZero() && v.Kind() != reflect.Struct {
		f.zero(field)
	}
	if change, ok := leaves[v.Type()]; ok {
		f.change(field, func() { v.Set(reflect.ValueOf(change(v.Interface()))) })
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		f.seen[v.Type().String()] = true
		for i := range v.NumField() {
			f.visit(v.Field(i), v.Type().Name()+"."+v.Type().Field(i).Name)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			f.visit(v.Elem(), field)
		}
	case reflect.Interface:
		inside := reflect.New(v.Elem().Type()).Elem()
		inside.Set(v.Elem())
		f.visit(inside, field)
		v.Set(inside)
	case reflect.Slice:
		if v.Len() > 0 {
			f.change(field+", one less", func() { v.Set(v.Slice(0, v.Len()-1)) })
		}
		for i := range v.Len() {
			f.visit(v.Index(i), field)
		}
	case reflect.Int, reflect.Int64:
		f.change(field, func() { v.SetInt(v.Int() + 1) })
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		f.change(field, func() { v.SetUint(v.Uint() + 1) })
	case reflect.String:
		f.change(field, func() { v.SetString(v.String() + "x") })
	default:
		panic(fmt.Sprintf("%s: the test knows no values of type %s", field, v.Type()))
	}
}

func (f *fields) change(field string, change func()) {
	if f.nth == 0 {
		change()
		f.changed = field
	}
	f.nth--
}
