package scenario

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/testbed/lab"
)

// TestAbuse does to a mesh what nobody should: every annotation wrong in every
// way, agents killed all the time, nodes cut off from each other while the
// granularity changes. Nothing panics, logs stay short, who is not concerned goes
// on, and afterwards every node holds what it held.
func TestAbuse(t *testing.T) {
	onRequest(t)
	spec := everyNodePublic()
	spec.Sidecar = true
	l := mesh(t, spec)
	reachAll(t, l, 30, 30)
	held := whatIsOurs(t, l)
	for _, s := range []struct {
		name string
		run  func(*testing.T, *lab.Lab)
	}{
		{"wrong annotations", wrongAnnotations},
		{"agents killed for a minute", agentsKilled},
		{"cut off while the granularity changes", cutOffWhileItChanges},
	} {
		t.Run(s.name, func(t *testing.T) {
			before := transitions(t, l)
			s.run(t, l)
			whole(t, l, soon)
			reachAll(t, l, 30, 30)
			eventually(t, soon, func() error {
				for name, now := range whatIsOurs(t, l) {
					if now != held[name] {
						return fmt.Errorf("%s held\n%s\nand now holds\n%s", name, held[name], now)
					}
				}
				return nil
			})
			for name, after := range transitions(t, l) {
				t.Logf("%s has logged %d lines", name, after-before[name])
				if after-before[name] > 2000 {
					t.Errorf("%s has logged %d lines", name, after-before[name])
				}
			}
			for _, n := range l.Agents() {
				if text := must(n.Log("kg"))(t); strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:") {
					t.Errorf("%s panicked", n.Name)
				}
			}
		})
	}
}

// transitions are how many lines each agent has logged, those for debugging left out.
func transitions(t *testing.T, l *lab.Lab) map[string]int {
	t.Helper()
	lines := map[string]int{}
	for _, n := range l.Agents() {
		for line := range strings.Lines(must(n.Log("kg"))(t)) {
			if !strings.Contains(line, "level=DEBUG") {
				lines[n.Name]++
			}
		}
	}
	return lines
}

// Whatever people write on a member and on a gateway, packets go on between all
// others. What is wrong is told on the Node and counted, and the agents, none of
// which ends, put back what is theirs.
func wrongAnnotations(t *testing.T, l *lab.Lab) {
	victims := []string{"a3", "b1"}
	const told = "nonsense"
	values := []string{
		told, "", "-", "10.0.0.1", "10.0.0.1/33", "0.0.0.0/0", "10.96.0.1/32", "10.244.0.0/16", "10.4.0.0/16", "127.0.0.1:51820",
		"256.1.1.1:1", "[::]:0", "-1", "99999999999999999999", strings.Repeat("x,", 3000), "ü\x01", `{"a":{"IP":"0.0.0.0"}}`, "cross",
	}
	// Not a wish and not a place, for which any value will do, nor a record.
	skipped := []string{api.Leader, api.Location, api.Epoch, api.Asked}
	names := slices.DeleteFunc(append(slices.Concat(api.Inputs(), api.Outputs()), "kilo.squat.ai/leadr"), func(n string) bool { return slices.Contains(skipped, n) })

	processes := map[string]int{}
	for _, n := range l.Agents() {
		processes[n.Name] = n.Daemon("kg")
	}
	streams := startStreams(t, l, "a1 cp", "cp a2")
	for _, value := range values {
		wrong, gone := map[string]*string{}, map[string]*string{}
		for _, name := range names {
			wrong[name] = &value
			if !slices.Contains(api.Outputs(), name) {
				gone[name] = nil
			}
		}
		for _, node := range victims {
			ok(t, l.Annotate(t.Context(), node, wrong))
		}
		if value == told {
			for _, node := range victims {
				eventually(t, soon, toldOf(t, l, node, api.ForceEndpoint, value))
			}
		}
		time.Sleep(time.Second)
		for _, node := range victims {
			ok(t, l.Annotate(t.Context(), node, gone))
		}
	}
	for _, s := range streams {
		stats := must(s.run.Stop(t.Context()))(t)
		t.Logf("%s: %s", s.name, stats)
		if stats.Lost() > 0 {
			t.Errorf("%s: %s", s.name, stats)
		}
	}
	for _, n := range l.Agents() {
		if now := n.Daemon("kg"); now != processes[n.Name] {
			t.Errorf("the agent of %s is process %d, was %d", n.Name, now, processes[n.Name])
		}
	}
}

// toldOf is a check for eventually: an annotation with a wrong value is told of
// where its owner looks, and counted.
func toldOf(t *testing.T, l *lab.Lab, node, annotation, value string) func() error {
	return func() error {
		n := l.Machine(node)
		if err := warns(t, n, "BadAnnotation", annotation, fmt.Sprintf("%q", value))(); err != nil {
			return err
		}
		metrics, err := n.Metrics(t.Context())
		if err != nil {
			return err
		}
		if metrics[`kilo_warnings{kind="BadAnnotation"}`] == 0 {
			return fmt.Errorf("%s does not count it", node)
		}
		events, err := l.Kubectl(t.Context(), "get", "events", "--all-namespaces", "--field-selector=involvedObject.name="+node, "--output=custom-columns=R:.reason,M:.message")
		if err == nil && !strings.Contains(events, annotation) {
			err = fmt.Errorf("no event of %s tells of %s:\n%s", node, annotation, events)
		}
		return err
	}
}

// Every second some agent is killed, and started at once. Packets are carried by
// others, and none is lost.
func agentsKilled(t *testing.T, l *lab.Lab) {
	streams := startStreams(t, l, "a3 b2", "b2 a3", "a1 cp", "cp b1")
	agents := l.Agents()
	kills := 0
	for end := time.Now().Add(time.Minute); time.Now().Before(end); kills++ {
		n := agents[rand.IntN(len(agents))]
		ok(t, n.KillAgent(t.Context()))
		ok(t, n.StartAgent(t.Context()))
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
	}
	for _, n := range agents {
		ok(t, n.WaitForAgent(t.Context(), soon))
	}
	t.Logf("%d kills", kills)
	for _, s := range streams {
		stats := must(s.run.Stop(t.Context()))(t)
		t.Logf("%s: %s", s.name, stats)
		if stats.Lost() > 0 {
			t.Errorf("%s: %s", s.name, stats)
		}
	}
}

// a3 cannot speak to b2, nor b1 to the API server, while all go to cross, back and
// to cross again, one after the other. (At once, one takes its direct way back
// while the other's agent is not there to see it.) Others hardly notice, and the two
// meet as soon as they can.
func cutOffWhileItChanges(t *testing.T, l *lab.Lab) {
	streams := startStreams(t, l, "a1 b2", "a2 cp", "b2 a2")
	restart := func(granularity string) {
		t.Helper()
		for _, n := range l.Agents() {
			ok(t, n.RestartAgent(t.Context(), "--mesh-granularity="+granularity))
			ok(t, n.WaitForAgent(t.Context(), soon))
		}
	}
	ok(t, l.Partition(t.Context(), "a3", "b2"))
	ok(t, l.Partition(t.Context(), "b1", "cp"))
	restart("cross")
	time.Sleep(8 * time.Second)
	restart("location")
	time.Sleep(2 * time.Second)
	restart("cross")
	ok(t, l.HealAll(t.Context()))
	eventually(t, soon, directAcross(t, l))
	ok(t, l.Partition(t.Context(), "a3", "b1"))
	restart("location")
	ok(t, l.HealAll(t.Context()))
	for _, s := range streams {
		stats := must(s.run.Stop(t.Context()))(t)
		t.Logf("%s: %s", s.name, stats)
		if stats.LongestGap > 3*time.Second {
			t.Errorf("%s: %s", s.name, stats)
		}
	}
}
