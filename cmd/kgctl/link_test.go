package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/link"
	"github.com/kilo-overlay/kilo/core/model"
)

var update = flag.Bool("update", false, "write golden files")

// bare is a cluster of a name and a number: location east of two nodes, where e1 is
// gateway with an endpoint, and west of one, behind NAT.
func bare(name string, n byte) end {
	p := func(format string, args ...any) netip.Prefix {
		return netip.MustParsePrefix(fmt.Sprintf(format, args...))
	}
	a := func(format string, args ...any) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, args...)) }
	key := func(id byte) (k model.Key) { k[0], k[1] = n, id; return k }
	node := func(id byte, name, location string) model.Node {
		return model.Node{
			Name: name, UID: name, Ready: true, Spoken: true, Location: location, Key: key(id), Granularity: model.PerLocation,
			InternalIPs: []netip.Prefix{p("10.%d0.%d.1/24", n, id)}, PodPrefixes: []netip.Prefix{p("10.%d1.%d.0/24", n, id)},
		}
	}
	e1, e2, w1 := node(1, "e1", "east"), node(2, "e2", "east"), node(3, "w1", "West.Side")
	e1.Epoch, e1.Endpoint = 1, model.Endpoint{Addr: a("198.51.100.%d", n), Port: 51820}
	e1.WireGuardIPs, w1.WireGuardIPs = []netip.Addr{a("10.%d4.0.1", n)}, []netip.Addr{a("10.%d4.0.2", n)}
	w1.AllowedLocationIPs = []netip.Prefix{p("10.%d9.0.0/24", n)}
	s := model.Snapshot{
		Nodes:            []model.Node{e1, e2, w1},
		ServicePrefixes:  []netip.Prefix{p("10.%d6.0.0/16", n)},
		WireGuardSubnets: []netip.Prefix{p("10.%d4.0.0/16", n)},
		Peers:            []model.Peer{{Name: "laptop", Key: key(9), AllowedIPs: []netip.Prefix{p("10.%d5.0.1/32", n)}}},
	}
	s.Sort()
	return end{Cluster: link.Cluster{Name: name, Snapshot: s}, id: "id-of-" + name}
}

// store does a plan's steps as the API server and the agents would.
func store(t *testing.T, e *end, all []step) {
	t.Helper()
	for _, s := range all {
		same := func(p api.Peer) bool { return p.Name == s.peer.Name }
		switch s.what {
		case "keep":
			continue
		case "add":
			if slices.ContainsFunc(e.stored, same) {
				t.Fatalf("%s is added twice", s.peer.Name)
			}
		}
		e.stored = slices.DeleteFunc(slices.Clone(e.stored), same)
		e.Snapshot.Peers = slices.DeleteFunc(slices.Clone(e.Snapshot.Peers), func(p model.Peer) bool { return p.Name == s.peer.Name })
		if s.what == "remove" {
			continue
		}
		e.stored = append(e.stored, s.peer)
		peer, err := cluster.ParsePeer(s.peer)
		if err != nil {
			t.Fatal(err)
		}
		e.Snapshot.Peers = append(e.Snapshot.Peers, peer)
		e.Snapshot.Sort()
	}
	if _, refused := cluster.Admit(e.Snapshot); len(refused) > 0 {
		t.Errorf("%s: its agents refuse %v", e.Name, refused)
	}
}

// The story of two clusters, as kgctl cluster link tells it.
func TestLink(t *testing.T) {
	var b strings.Builder
	app, dr := bare("app", 1), bare("dr", 2)
	run := func(title string, share ...link.What) {
		t.Helper()
		if share == nil {
			share = link.All()
		}
		fmt.Fprintf(&b, "# %s\n", title)
		plan, err := planLink(app, dr, share, 25*time.Second)
		for _, note := range plan.notes {
			fmt.Fprintf(&b, "warning: %s\n", note)
		}
		if err != nil {
			fmt.Fprintf(&b, "error: %v\n\n", err)
			return
		}
		if err := plan.run(&b, func(end, step) error { return nil }); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
		store(t, &app, plan.steps[0])
		store(t, &dr, plan.steps[1])
	}

	run("linked")
	dr.stored[0].Spec.AllowedDestinations = []api.Destination{{Prefix: "10.21.0.0/16"}}
	run("again: nothing to do")

	// e2 takes over in dr, where an endpoint of its own is known by name.
	n := slices.Clone(dr.Snapshot.Nodes)
	n[0].Endpoint, n[1].Epoch, n[1].Endpoint = model.Endpoint{}, 2, model.Endpoint{Host: "dr.example.com", Port: 51820}
	dr.Snapshot.Nodes = n
	run("another gateway")

	dr.Snapshot.Nodes = slices.Clone(dr.Snapshot.Nodes)
	dr.Snapshot.Nodes[2].Spoken = false
	run("a location without a gateway")
	dr.Snapshot.Nodes = dr.Snapshot.Nodes[:2]
	run("a location less")
	run("pods and nodes alone", link.Pods, link.Nodes)

	// What keeps two clusters apart.
	clean := bare("dr", 2)
	dr = bare("dr", 2)
	app = bare("app", 1)
	dr.Snapshot.ServicePrefixes, dr.Snapshot.WireGuardSubnets = app.Snapshot.ServicePrefixes, app.Snapshot.WireGuardSubnets
	run("Services and WireGuard addresses of both are the same")
	run("Services and WireGuard addresses left out", link.Pods, link.Nodes)
	app, dr = bare("app", 1), clean
	dr.Snapshot.Nodes = slices.Clone(dr.Snapshot.Nodes)
	for i := range dr.Snapshot.Nodes {
		dr.Snapshot.Nodes[i].PodPrefixes = app.Snapshot.Nodes[i].PodPrefixes
		dr.Snapshot.Nodes[i].InternalIPs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.10.1.%d/24", 10+i))}
	}
	dr.Snapshot.Peers = []model.Peer{{Name: "office", AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.16.3.0/24")}}}
	run("pods of both are the same, and a network")
	app, dr = bare("app", 1), bare("dr", 2)
	app.stored = []api.Peer{resource("dr-east", link.Peers(dr.Cluster, link.All(), 0, "")[0].Peer)}
	run("a name that is taken")

	golden := filepath.Join("testdata", "link.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%s\nwant (-update writes it)\n%s", b.String(), want)
	}
}

// What is shared, and what a link leaves alone.
func TestLinkSteps(t *testing.T) {
	app, dr := bare("app", 1), bare("dr", 2)
	plan, err := planLink(app, dr, []link.What{link.Pods}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, there := range []end{dr, app} {
		for _, s := range plan.steps[i] {
			if s.peer.Labels[api.LinkedClusterID] != there.id || s.peer.Labels[api.LinkedCluster] != there.Name {
				t.Errorf("%s is not known as %s's: %v", s.peer.Name, there.Name, s.peer.Labels)
			}
			for _, p := range s.peer.Spec.AllowedIPs {
				if !strings.HasPrefix(p, fmt.Sprintf("10.%d1.", 2-i)) {
					t.Errorf("%s: %s is no pod prefix", s.peer.Name, p)
				}
			}
		}
	}

	// A step that fails stops nobody, and is not told as done.
	var out strings.Builder
	err = plan.run(&out, func(e end, s step) error {
		if s.peer.Name == "dr-east" {
			return errors.New("no")
		}
		return nil
	})
	if err == nil || err.Error() != "app: no" || strings.Contains(out.String(), "dr-east") || !strings.Contains(out.String(), "app-east") {
		t.Errorf("%v\n%s", err, out.String())
	}

	// Peers of nobody's making stay out of it.
	store(t, &app, plan.steps[0])
	app.stored = append(app.stored, api.Peer{})
	if made := madeBy(app.stored, dr.id); len(made) != 2 {
		t.Errorf("a link with %s made %v", dr.Name, made)
	}
}
