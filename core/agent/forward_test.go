package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/kilo-overlay/kilo/core/firewall"
	"github.com/kilo-overlay/kilo/core/internal/nstest"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/model"
)

// watching is a forwarder on the real kernel, and what it counted.
type watching struct {
	*forwarder
	woken, mended, failures atomic.Int32
}

// startForwarder runs one until the test, or stop, ends it.
func startForwarder(t *testing.T, accept bool, dir string) (w *watching, stop func()) {
	t.Helper()
	w = &watching{}
	w.forwarder = &forwarder{
		chains: kernel.NewForward(nil), accept: accept, dir: dir, object: "node/e1", every: time.Hour,
		wake: func() { w.woken.Add(1) }, failed: func(error) { w.failures.Add(1) }, mended: func() { w.mended.Add(1) },
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), hints: make(chan struct{}, 1), pace: rate.NewLimiter(driftPace, driftBurst),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return w, stop
}

func warned(ws []model.Warning, kind, part string) bool {
	return slices.ContainsFunc(ws, func(w model.Warning) bool {
		return w.Kind == kind && w.Object == "node/e1" && strings.Contains(w.Message, part)
	})
}

// until waits for something that comes by itself.
func until(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(began)
}

var forwardTools = []string{"nft", "iptables-nft", "iptables-legacy", "iptables-legacy-save"}

const dropping = `
	nft add table inet fw; nft add chain inet fw foreign '{ type filter hook forward priority 0; policy drop; }'
	nft add rule inet fw foreign ip saddr 192.168.0.0/16 accept
	iptables-nft -P FORWARD DROP
	iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -p icmp -j ACCEPT`

func allRules(t *testing.T) string {
	t.Helper()
	return nstest.Sh(t, "{ nft -s list ruleset; iptables-legacy-save; } | grep -v '^#'")
}

func accepts(t *testing.T) int {
	t.Helper()
	return strings.Count(allRules(t), firewall.Comment)
}

// Chains of others that drop are told of and left alone, and no longer told of
// when they have ceased to drop.
func TestForwardDropIsReported(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, dropping)
		before := allRules(t)
		w, _ := startForwarder(t, false, filepath.Join(t.TempDir(), "state"))
		if time.Sleep(200 * time.Millisecond); len(w.Warnings()) != 0 {
			t.Errorf("nobody knows yet what this node forwards, and yet: %v", w.Warnings())
		}
		w.Set(true, false)
		until(t, "three warnings", func() bool { return len(w.Warnings()) == 3 })
		for _, chain := range []string{"table inet fw", "table ip filter", "iptables-legacy"} {
			if !warned(w.Warnings(), firewall.ForwardDrop, chain) {
				t.Errorf("nothing about %s in %v", chain, w.Warnings())
			}
		}
		if after := allRules(t); after != before {
			t.Errorf("something foreign was changed:\n%s", after)
		}
		woken := w.woken.Load()
		nstest.Sh(t, "nft delete table inet fw")
		until(t, "one warning less", func() bool { return len(w.Warnings()) == 2 })
		if w.woken.Load() == woken {
			t.Error("nobody was told")
		}
		w.Set(false, false)
		until(t, "no warning where nothing is forwarded", func() bool { return len(w.Warnings()) == 0 })
	}, forwardTools...)
}

// Where somebody asks for them, accepts are put in, recorded before, kept, and
// taken out when nobody asks any more.
func TestForwardAccepts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, dropping)
		before := allRules(t)
		dir := filepath.Join(t.TempDir(), "state")
		w, stop := startForwarder(t, true, dir)
		w.Set(true, false)
		until(t, "three accepts", func() bool { return accepts(t) == 3 })
		until(t, "quiet", func() bool { return len(w.Warnings()) == 0 })
		record, err := readUndo(dir)
		if err != nil || len(record) != 3 {
			t.Errorf("recorded: %v (%v)", record, err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, UndoFile)); err != nil || !strings.Contains(string(text), `"table": "fw"`) {
			t.Errorf("%s (%v)", text, err)
		}

		// Drift: at once, and counted.
		for i := range 3 {
			nstest.Sh(t, "nft flush chain inet fw foreign")
			took := until(t, "the accept to come back", func() bool { return accepts(t) == 3 })
			t.Logf("back %s after a flush", took)
			if took > time.Second {
				t.Errorf("it took %s to come back", took)
			}
			until(t, "the count", func() bool { return w.mended.Load() == int32(i+1) })
		}
		nstest.Sh(t, "iptables-legacy -F FORWARD")
		t.Logf("back %s after a flush of iptables-legacy", until(t, "the accept to come back", func() bool { return accepts(t) == 3 }))
		nstest.Sh(t, "nft add rule inet fw foreign ip saddr 192.168.0.0/16 accept; iptables-legacy -A FORWARD -p icmp -j ACCEPT")

		// A new chain that drops, and one that no longer does.
		nstest.Sh(t, "nft add table ip late; nft add chain ip late f '{ type filter hook forward priority 0; policy drop; }'")
		until(t, "a fourth accept", func() bool { return accepts(t) == 4 })
		nstest.Sh(t, "nft add chain ip late f '{ policy accept; }'")
		until(t, "three accepts", func() bool { return accepts(t) == 3 })
		nstest.Sh(t, "nft delete table ip late")

		// Left as it is when the agent ends, adopted by the next.
		stop()
		if accepts(t) != 3 {
			t.Error("the end of an agent took accepts out")
		}
		w, stop = startForwarder(t, true, dir)
		w.Set(true, false)
		time.Sleep(300 * time.Millisecond)
		if accepts(t) != 3 || w.mended.Load() != 0 {
			t.Errorf("%d accepts, %d of them mended", accepts(t), w.mended.Load())
		}
		stop()

		// One that is not asked for it knows nothing at first, and takes out nothing.
		w, stop = startForwarder(t, false, dir)
		if time.Sleep(300 * time.Millisecond); accepts(t) != 3 {
			t.Error("an agent that knows nothing yet took accepts out")
		}
		w.Set(true, false)
		until(t, "no accept", func() bool { return accepts(t) == 0 })
		until(t, "the warnings", func() bool { return len(w.Warnings()) == 3 })
		if after := allRules(t); after != before {
			t.Errorf("left:\n%s\nbefore:\n%s", after, before)
		}
		until(t, "no record", func() bool { _, err := os.Stat(filepath.Join(dir, UndoFile)); return errors.Is(err, os.ErrNotExist) })
		stop()
	}, forwardTools...)
}

// What cannot be recorded is not done, and said.
func TestForwardAcceptThatCannotBeRecorded(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Sh(t, dropping)
		before := allRules(t)
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w, _ := startForwarder(t, true, filepath.Join(file, "state"))
		w.Set(true, false)
		until(t, "a word about it", func() bool { return warned(w.Warnings(), ForwardRules, "could not be recorded") })
		if after := allRules(t); after != before {
			t.Errorf("changed all the same:\n%s", after)
		}
		if w.failures.Load() == 0 {
			t.Error("not counted")
		}
	}, forwardTools...)
}

// kg uninstall takes out what any agent ever put in, whatever became of the record.
func TestTakeAcceptsOut(t *testing.T) {
	gone := `{"version":1,"forwardAccepts":[{"backend":"nft","family":"ip","table":"gone","chain":"f"}]}`
	for name, record := range map[string]string{"as recorded": "", "no record": "-", "of no use": "{", "another version": `{"version":9}`, "of a chain that is gone": gone} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				nstest.Sh(t, dropping)
				before := allRules(t)
				dir := t.TempDir()
				w, stop := startForwarder(t, true, dir)
				w.Set(true, false)
				until(t, "three accepts", func() bool { return accepts(t) == 3 })
				stop()
				path := filepath.Join(dir, UndoFile)
				switch record {
				case "":
				case "-":
					os.Remove(path)
				default:
					if err := os.WriteFile(path, []byte(record), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				done, err := TakeAcceptsOut(t.Context(), kernel.NewForward(nil), dir)
				if err != nil || len(done) < 3 {
					t.Errorf("done: %v (%v)", done, err)
				}
				if after := allRules(t); after != before {
					t.Errorf("left:\n%s\nbefore:\n%s", after, before)
				}
				if left, _ := os.ReadDir(dir); len(left) != 0 {
					t.Errorf("files are left: %v", left)
				}
				if done, err := TakeAcceptsOut(t.Context(), kernel.NewForward(nil), dir); err != nil || len(done) != 0 {
					t.Errorf("again: %v (%v)", done, err)
				}
			}, forwardTools...)
		})
	}
}
