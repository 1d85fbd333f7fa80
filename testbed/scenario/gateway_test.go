package scenario

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// The leader annotation moves the gateway once; taking it away moves nothing.
// A gateway that loses power is replaced when its Node has been NotReady for as
// long as it takes kubelets to report, and does not take over again when it
// comes back. Connections survive either change, or end with a reset, and what they
// try while there is no gateway is seen on no wire.
func gatewayChanges(t *testing.T, l *lab.Lab) {
	eventually(t, soon, gatewayIs(t.Context(), l, "a", "a1"))
	epoch := func() uint64 { t.Helper(); return must(epochOf(t.Context(), l, "a"))(t) }

	services := conversationTargets(t, l)
	first := epoch()
	yes := "true"
	talk := conversations(t, l, services)
	time.Sleep(time.Second)
	ok(t, l.Annotate(t.Context(), "a2", map[string]*string{"kilo.squat.ai/leader": &yes}))
	asked := time.Now()
	eventually(t, soon, gatewayIs(t.Context(), l, "a", "a2"))
	within(t, 10*time.Second, time.Since(asked), "a2 is annotated, and serves")
	within(t, 10*time.Second, whole(t, l, soon), "it serves, and the mesh is whole")
	if now := epoch(); now != first+1 {
		t.Errorf("epoch %d after %d: the gateway moved more than once", now, first)
	}

	ok(t, l.Annotate(t.Context(), "a2", map[string]*string{"kilo.squat.ai/leader": nil}))
	time.Sleep(10 * time.Second)
	goOnOrWereReset(t, talk, 5*time.Second)
	eventually(t, soon, gatewayIs(t.Context(), l, "a", "a2"))
	if now := epoch(); now != first+1 {
		t.Errorf("epoch %d: taking the annotation away moved the gateway", now)
	}
	reachAll(t, l, 42, 56)

	talk = conversations(t, l, services)
	time.Sleep(time.Second)
	wires := watchWires(t, l)
	ok(t, l.Machine("a2").PowerOff(t.Context()))
	off := time.Now()
	eventually(t, 2*time.Minute, func() error {
		if ready, err := l.NodeReady(t.Context(), "a2"); ready || err != nil {
			return fmt.Errorf("a2 is ready (%v)", err)
		}
		return nil
	})
	notReady := time.Now()
	eventually(t, soon, gatewayIs(t.Context(), l, "a", "a1"))
	within(t, 20*time.Second, time.Since(notReady), "a2 is not ready, and a1 serves")
	eventually(t, soon, func() error { return l.Pod("a3").Ping(t.Context(), l.Pod("b2").Addr) })
	t.Logf("a2 was held for ready for %s after its power-off; a1 serves, and packets pass, %s after that",
		notReady.Sub(off).Round(time.Second), time.Since(notReady).Round(10*time.Millisecond))
	// An answer that was lost is sent again after a pause as long as the silence
	// before: who listens did so before conversationTargets shortened that.
	goOnOrWereReset(t, talk, 2*time.Minute)
	wires.quiet(t)

	ok(t, l.Machine("a2").PowerOn(t.Context()))
	whole(t, l, soon)
	time.Sleep(5 * time.Second)
	eventually(t, soon, gatewayIs(t.Context(), l, "a", "a1"))
	if now := epoch(); now != first+2 {
		t.Errorf("epoch %d, want %d: the gateway that came back took over", now, first+2)
	}
}

// epochOf is the highest that a node of the location has published, as one of
// its agents sees it.
func epochOf(ctx context.Context, l *lab.Lab, location string) (uint64, error) {
	s, err := l.Machine("cp").AgentStatus(ctx)
	for _, loc := range s.Locations {
		if loc.Name == location {
			return loc.Epoch, err
		}
	}
	return 0, fmt.Errorf("no location %q: %w", location, err)
}
