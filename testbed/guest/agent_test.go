package guest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The agent on two nodes with the kernel's WireGuard is restarted and killed,
// also while the API server is away, and the pods between them lose no packet.
//
// The API server is a lab's, on this machine: a guest would take minutes to
// start one.
func TestAgentUnderTraffic(t *testing.T) {
	need(t, Check())
	need(t, lab.Check())
	cp := lab.Default().Locations[len(lab.Default().Locations)-1]
	l := up(t, lab.Spec{
		CNI: lab.CNINone, ProxyMode: lab.ProxyOff, NoAgent: true,
		Locations: []lab.Location{NodeMachine("east", 1), NodeMachine("west", 2), cp},
	})
	g, err := WithNodes(t.Context(), progress{t}, l, "./testbed/guest/twonodes", t.TempDir(), l.Machine("east"), l.Machine("west"))
	if err != nil {
		t.Fatal(err)
	}
	// Where QEMU runs is what the guest reaches.
	for _, r := range boot(t, g, 8*time.Minute, l.Machine(controlPlane).Exec) {
		if r.Code == 0 {
			t.Log("\n" + r.Output)
		}
	}
}

// up brings up a lab for one test and takes it down with it.
func up(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Name()), "-")
	name = fmt.Sprintf("%.20s-%d", name, os.Getpid())
	t.Cleanup(func() {
		// Not the test's context: that is over when this runs.
		if err := lab.Down(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), spec, lab.Options{Name: name, Progress: progress{t}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// progress is a Writer that logs to the test.
type progress struct{ t *testing.T }

func (p progress) Write(b []byte) (int, error) {
	p.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}
