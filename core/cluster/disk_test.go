package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kilo-overlay/kilo/core/model"
)

const secretText = "aPxGwq8zERHQ3Q1cOZFdJ+cvJX5Ka4mLN38AyYKYF10="

// everything is a state in which every kind of value occurs.
func everything(t *testing.T) kept {
	t.Helper()
	psk, err := model.ParsePresharedKey(secretText)
	if err != nil {
		t.Fatal(err)
	}
	p := netip.MustParsePrefix
	return kept{
		Version: diskVersion,
		Node:    "e1",
		Snapshot: model.Snapshot{
			Nodes: []model.Node{{
				Name: "e1", UID: "u1", Ready: true, Spoken: true, Location: "east", Key: model.Key{1},
				Endpoint:     model.Endpoint{Host: "e1.example.test", Addr: netip.MustParseAddr("198.51.100.1"), Port: 51820},
				InternalIPs:  []netip.Prefix{p("10.0.0.1/24"), p("fd00::1/64")},
				WireGuardIPs: []netip.Addr{netip.MustParseAddr("10.4.0.1")},
				PodPrefixes:  []netip.Prefix{p("10.244.1.0/24")},
				Granularity:  model.PerLocation, Epoch: 3, Asked: "x", Leader: true, ForcedEndpoint: true,
				Keepalive: 25 * time.Second, AllowedLocationIPs: []netip.Prefix{p("192.0.2.0/24")},
				Discovered: map[model.Key]netip.AddrPort{{7}: netip.MustParseAddrPort("203.0.113.50:40001")},
				TunnelMTU:  1420, Tunnel: "kernel", NodesOnly: true,
			}, {Name: "n9"}},
			Peers: []model.Peer{
				{Name: "laptop", UID: "p1", Key: model.Key{8}, AllowedIPs: []netip.Prefix{p("10.5.0.1/32")}, Seq: 17},
				{Name: "server", UID: "p2", Key: model.Key{9}, AllowedIPs: []netip.Prefix{p("10.6.0.1/32")}, PresharedKey: psk},
			},
			ServicePrefixes:  []netip.Prefix{p("10.96.0.0/12")},
			WireGuardSubnets: []netip.Prefix{p("10.4.0.0/16")},
			APIServers:       []netip.AddrPort{netip.MustParseAddrPort("198.51.100.200:6443")},
		},
		Inputs: model.Inputs{LocationAnnotation: "east", NoInternalIP: true, NodeInternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
	}
}

var values = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b model.PresharedKey) bool { return a == b }),
}

func TestWhatIsKeptComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kilo")
	want := everything(t)
	d := newDisk(dir, slog.New(slog.DiscardHandler))
	if err := d.write(want); err != nil {
		t.Fatal(err)
	}
	got := newDisk(dir, slog.New(slog.DiscardHandler)).load("e1")
	if diff := cmp.Diff(want, got, values); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, name := range []string{snapshotFile, secretFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if text, _ := os.ReadFile(filepath.Join(dir, snapshotFile)); bytes.Contains(text, []byte(secretText[:10])) {
		t.Errorf("the snapshot holds the preshared key: %s", text)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("files left behind: %v", files)
	}

	t.Run("the last preshared key goes", func(t *testing.T) {
		want.Snapshot.Peers = want.Snapshot.Peers[:1]
		if err := d.write(want); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, secretFile)); !os.IsNotExist(err) {
			t.Errorf("the file of preshared keys is still there: %v", err)
		}
	})
}

// A Peer is never taken from disk without the preshared key that it had.
func TestPeerWithoutItsPresharedKey(t *testing.T) {
	other := strings.Replace(secretText, "a", "b", 1)
	for name, damage := range map[string]func(path string) error{
		"file gone":  os.Remove,
		"file empty": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"not JSON":   func(path string) error { return os.WriteFile(path, []byte(secretText), 0o600) },
		"another key": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":1,"presharedKeys":{"server":"`+other+`"}}`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := newDisk(dir, slog.New(slog.DiscardHandler)).write(everything(t)); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(dir, secretFile)); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			got := newDisk(dir, slog.New(slog.NewTextHandler(&log, nil))).load("e1")
			if len(got.Snapshot.Peers) != 1 || got.Snapshot.Peers[0].Name != "laptop" || len(got.Snapshot.Nodes) != 2 {
				t.Errorf("got peers %v", got.Snapshot.Peers)
			}
			if !strings.Contains(log.String(), "peer=server") || strings.Contains(log.String(), secretText[:10]) {
				t.Errorf("the log says: %s", &log)
			}
		})
	}
}

func TestDiskOfNoUse(t *testing.T) {
	good, _, err := encode(everything(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty":           "",
		"truncated":       string(good[:len(good)/2]),
		"other version":   strings.Replace(string(good), `"version":1`, `"version":99`, 1),
		"bad value":       strings.Replace(string(good), "10.244.1.0/24", "10.244.1.0/99", 1),
		"of another node": strings.Replace(string(good), `"node":"e1"`, `"node":"e2"`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, snapshotFile)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			got := newDisk(dir, slog.New(slog.NewTextHandler(&log, nil))).load("e1")
			if diff := cmp.Diff(kept{}, got, values); diff != "" {
				t.Errorf("something was taken from it:\n%s", diff)
			}
			if !strings.Contains(log.String(), path) {
				t.Errorf("the log does not name the file: %s", &log)
			}
			if after, _ := os.ReadFile(path); string(after) != content {
				t.Errorf("the file was changed")
			}
		})
	}
	t.Run("none yet", func(t *testing.T) {
		var log bytes.Buffer
		newDisk(t.TempDir(), slog.New(slog.NewTextHandler(&log, nil))).load("e1")
		if log.Len() != 0 {
			t.Errorf("a first start is worth no word: %s", &log)
		}
	})
}

// Changes that come together are written once, equal ones never, and the last
// one also when the process ends.
func TestWritesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, snapshotFile)
		d := newDisk(dir, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.run(ctx); close(done) }()

		k := everything(t)
		for i := range 100 {
			k.Snapshot.Nodes[0].Epoch = uint64(i)
			d.save(clone(k))
			time.Sleep(time.Millisecond)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("written at once: %v", err)
		}
		time.Sleep(2 * diskPause)
		synctest.Wait()
		first, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		d.save(clone(k))
		time.Sleep(2 * diskPause)
		synctest.Wait()
		second, err := os.Stat(path)
		if err != nil || !os.SameFile(first, second) {
			t.Errorf("an equal state was written again (%v)", err)
		}
		k.Snapshot.Nodes[0].Epoch = 1000
		d.save(clone(k))
		stop()
		<-done
		if got := newDisk(dir, slog.New(slog.DiscardHandler)).load("e1"); got.Snapshot.Nodes[0].Epoch != 1000 {
			t.Errorf("the last state was lost: epoch %d", got.Snapshot.Nodes[0].Epoch)
		}
	})
}

func clone(k kept) kept {
	k.Snapshot.Nodes = append([]model.Node(nil), k.Snapshot.Nodes...)
	return k
}
