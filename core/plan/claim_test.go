package plan_test

import (
	"strings"
	"testing"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/plan"
)

// snapshotOf parses node lines in the words of the golden files.
func snapshotOf(t *testing.T, lines string) model.Snapshot {
	t.Helper()
	return parseCase(t, lines).snapshot
}

func TestClaim(t *testing.T) {
	const (
		w0 = "node w0 location=west internal=192.168.9.1/24 endpoint=203.0.113.1:51820 "
		w1 = "node w1 location=west internal=192.168.9.9/24 endpoint=203.0.113.9:51820 "
	)
	for _, tc := range []struct {
		name, nodes, self string
		epoch             uint64
		asked             string
		claims            bool
	}{
		{"first of a location", w1, "w1", 1, "endpoint", true},
		{"not the best candidate", w0 + "\n" + w1, "w1", 0, "endpoint", false},
		{"the best candidate", w0 + "\n" + w1, "w0", 1, "endpoint", true},
		{"serving keeps quiet", w0 + "epoch=3\n" + w1, "w0", 3, "endpoint", false},
		{"TC14: a better name never pre-empts", w0 + "asked=endpoint\n" + w1 + "epoch=3", "w0", 0, "endpoint", false},
		{"TC14: leader newly set where the gateway has it too", w0 + "leader asked=endpoint\n" + w1 + "leader epoch=3", "w0", 0, "leader,endpoint", false},
		{"leader newly set", w0 + "leader asked=endpoint\n" + w1 + "epoch=3", "w0", 4, "leader,endpoint", true},
		{"leader set, and acted upon before", w0 + "leader asked=leader,endpoint\n" + w1 + "epoch=3", "w0", 0, "leader,endpoint", false},
		{"a wish taken back is forgotten", w0 + "asked=leader,endpoint\n" + w1 + "epoch=3", "w0", 0, "endpoint", false},
		{"force-endpoint newly set", w0 + "forced asked=endpoint\n" + w1 + "epoch=3", "w0", 4, "force-endpoint,endpoint", true},
		{"force-endpoint does not outrank a leader", w0 + "forced asked=endpoint\n" + w1 + "leader epoch=3", "w0", 0, "force-endpoint,endpoint", false},
		{"an endpoint where the gateway has none", w0 + "\nnode w9 location=west internal=192.168.9.99/24 epoch=2", "w0", 3, "endpoint", true},
		{"TC14: the gateway failed", w0 + "asked=endpoint\n" + w1 + "epoch=3 notready", "w0", 4, "endpoint", true},
		{"the gateway failed, another is next", w0 + "asked=endpoint\n" + w1 + "epoch=3 notready\nnode w2 location=west leader internal=192.168.9.3/24", "w0", 0, "endpoint", false},
		{"TC14: it comes back and does not pre-empt", w0 + "epoch=4\n" + w1 + "epoch=3 asked=endpoint", "w1", 3, "endpoint", false},
		{"not ready does not claim", w1 + "notready", "w1", 0, "", false},
		{"not ready keeps its wishes for later", w0 + "leader notready asked=endpoint\n" + w1 + "epoch=3", "w0", 0, "endpoint", false},
		{"another location does not matter", w1 + "\nnode e1 location=east internal=10.0.0.1/24 epoch=9", "w1", 1, "endpoint", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := plan.NewMesh(snapshotOf(t, tc.nodes)).Claim(tc.self)
			if got.Epoch != tc.epoch || got.Asked != tc.asked || got.Claims != tc.claims {
				t.Errorf("got epoch %d asked %q claims %v (%s), want epoch %d asked %q claims %v",
					got.Epoch, got.Asked, got.Claims, got.Reason, tc.epoch, tc.asked, tc.claims)
			}
			if got.Claims == (got.Reason == "") {
				t.Errorf("claims %v with reason %q", got.Claims, got.Reason)
			}
		})
	}
}

func TestServing(t *testing.T) {
	for _, tc := range []struct{ name, nodes, want string }{
		{"highest epoch", "node a location=x epoch=2\nnode b location=x epoch=5\nnode c location=x leader endpoint=198.51.100.1:1 epoch=4", "b"},
		{"equal epochs: lower name", "node b location=x epoch=5\nnode a location=x epoch=5", "a"},
		{"epoch of a node without agent does not count", "node a location=x epoch=5 unspoken\nnode b location=x epoch=1", "b"},
		{"unclaimed: the best that is ready", "node a location=x leader notready\nnode b location=x\nnode c location=x endpoint=198.51.100.1:1", "c"},
		{"a claim holds though the node is not ready", "node a location=x epoch=1 notready\nnode b location=x", "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ls := plan.Locations(snapshotOf(t, tc.nodes))
			if len(ls) != 1 || ls[0].Gateway == nil || ls[0].Gateway.Name != tc.want {
				t.Errorf("got %+v, want gateway %s", ls, tc.want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	const east = "node e1 location=east leader\nnode e2 location=east\nnode e3 location=east\n"
	for _, tc := range []struct {
		name, nodes, self string
		subnet            string
		want, err         string
	}{
		{"lowest free", east, "e1", "10.4.0.0/16", "10.4.0.1", ""},
		{"a second candidate claims too, beside the first", east + "node w1 location=west wg=10.4.0.1", "e2", "10.4.0.0/16", "10.4.0.3", ""},
		{"the first has claimed", "node e1 location=east leader wg=10.4.0.2\nnode e2 location=east\nnode w1 location=west wg=10.4.0.1", "e2", "10.4.0.0/16", "10.4.0.3", ""},
		{"a third does not", east, "e3", "10.4.0.0/16", "", ""},
		{"unless it meshes itself", "node e1 location=e\nnode e2 location=e\nnode e3 location=e granularity=cross", "e3", "10.4.0.0/16", "10.4.0.3", ""},
		{"a third that has one keeps it", "node e1 location=e\nnode e2 location=e\nnode e3 location=e wg=10.4.0.7", "e3", "10.4.0.0/16", "10.4.0.7", ""},
		{"TC16: joining moves nobody", "node a location=a\nnode b location=b wg=10.4.0.1\nnode c location=c wg=10.4.0.2", "a", "10.4.0.0/16", "10.4.0.3", ""},
		{"TC16: nor does leaving", "node c location=c wg=10.4.0.2", "c", "10.4.0.0/16", "10.4.0.2", ""},
		{"outside the subnet it is given up", "node c location=c wg=10.9.0.2", "c", "10.4.0.0/16", "10.4.0.1", ""},
		{"the subnet's own address is nobody's", "node c location=c wg=10.4.0.0", "c", "10.4.0.0/16", "10.4.0.1", ""},
		{"two hold one: the lower UID keeps it", "node a location=a wg=10.4.0.1\nnode b location=b wg=10.4.0.1", "a", "10.4.0.0/16", "10.4.0.1", ""},
		{"two hold one: the other claims anew", "node a location=a wg=10.4.0.1\nnode b location=b wg=10.4.0.1", "b", "10.4.0.0/16", "10.4.0.2", ""},
		{"TC17: exhausted", "node a location=a wg=10.4.0.1\nnode b location=b wg=10.4.0.2\nnode c location=c wg=10.4.0.3\nnode d location=d", "d", "10.4.0.0/30", "", "no free address in 10.4.0.0/30"},
		{"fewer free ones than nodes before it", "node a location=a\nnode b location=b wg=10.4.0.2\nnode c location=c wg=10.4.0.3\nnode d location=d", "d", "10.4.0.0/30", "10.4.0.1", ""},
		{"TC17: exhaustion leaves the others alone", "node a location=a wg=10.4.0.1\nnode b location=b wg=10.4.0.2\nnode c location=c wg=10.4.0.3\nnode d location=d", "c", "10.4.0.0/30", "10.4.0.3", ""},
		{"both families", "node a location=a\nnode b location=b wg=10.4.0.1,fd04::1", "a", "10.4.0.0/16,fd04::/64", "10.4.0.2 fd04::2", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshotOf(t, tc.nodes)
			s.WireGuardSubnets = prefixes(tc.subnet)
			got, err := plan.NewMesh(s).Addresses(tc.self, 2)
			var texts []string
			for _, a := range got {
				texts = append(texts, a.String())
			}
			if strings.Join(texts, " ") != tc.want {
				t.Errorf("got %v, want %s", got, tc.want)
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
		})
	}
}
