package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kilo-overlay/kilo/core/model"
)

// One wish at a time, a new one, and an answer when it was followed.
func TestGatewaySet(t *testing.T) {
	at := func(last byte) model.Endpoint {
		return model.Endpoint{Addr: netip.AddrFrom4([4]byte{198, 51, 100, last}), Port: 51820}
	}
	nodes := func() model.Snapshot {
		n := func(name, location string, last byte) model.Node {
			return model.Node{Name: name, Location: location, Ready: true, Spoken: true, Key: model.Key{last}, Endpoint: at(last), Asked: "endpoint"}
		}
		s := model.Snapshot{Nodes: []model.Node{n("a1", "a", 1), n("a2", "a", 2), n("a3", "a", 3), n("b1", "b", 4), {Name: "a4", Location: "a", Ready: true}}}
		s.Nodes[0].Epoch, s.Nodes[3].Epoch = 1, 1
		s.Nodes[2].Ready = false
		s.Sort()
		return s
	}
	for _, c := range []struct {
		what, location, node string
		change               func(*model.Snapshot)
		deaf                 bool // agents do nothing
		sets                 string
		want                 string // of the complaint or the answer
	}{
		{what: "another one", location: "a", node: "a2", sets: "a2=true", want: `node a2 serves location "a" instead of a1`},
		{what: "it serves already", location: "a", node: "a1", want: "already"},
		{what: "others carry the wish", location: "a", node: "a2", change: func(s *model.Snapshot) { s.Node("a1").Leader = true }, sets: "a1=false a2=true", want: "instead of a1"},
		{what: "it carries a wish that was followed long ago", location: "a", node: "a2", change: func(s *model.Snapshot) {
			s.Node("a2").Leader, s.Node("a2").Asked = true, "leader,endpoint"
		}, sets: "a2=false a2=true", want: "instead of a1"},
		{what: "no agent follows", location: "a", node: "a2", deaf: true, sets: "a2=true", want: `does not yet; a1 does`},
		{what: "no such location", location: "c", node: "a2", want: `there is no location "c"; there are "a", "b"`},
		{what: "no such node", location: "a", node: "a9", want: "there is no node a9"},
		{what: "elsewhere", location: "a", node: "b1", want: `node b1 is in location "b", not in "a"`},
		{what: "not ready", location: "a", node: "a3", want: "node a3 is not ready"},
		{what: "no agent", location: "a", node: "a4", want: "no agent has spoken for it"},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := nodes()
				if c.change != nil {
					c.change(&s)
				}
				var sets []string
				set := func(node string, leader bool) error {
					sets = append(sets, fmt.Sprintf("%s=%t", node, leader))
					n := s.Node(node)
					n.Leader = leader
					if !c.deaf {
						time.AfterFunc(time.Second, func() {
							n.Asked = "endpoint"
							if leader {
								n.Asked, n.Epoch = "leader,endpoint", n.Epoch+2
							}
						})
					}
					return nil
				}
				var said strings.Builder
				p := &program{err: &said, load: func(context.Context, *options) (model.Snapshot, []model.Warning, error) {
					copied := s
					copied.Nodes = slices.Clone(s.Nodes)
					return copied, nil, nil
				}}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := p.setGateway(ctx, &options{}, c.location, c.node, set); err != nil {
					said.WriteString(err.Error())
				}
				if got := strings.Join(sets, " "); got != c.sets {
					t.Errorf("annotated %q, want %q", got, c.sets)
				}
				if !strings.Contains(said.String(), c.want) {
					t.Errorf("said %q, want %q", said.String(), c.want)
				}
			})
		})
	}
}
