package scenario

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// At rest nobody writes to the API server because of us: ten minutes without a
// request of an agent that changes anything, and, as the API server itself
// counts, without a write to Nodes or Events by anybody whom we could have made
// do it.
//
// It waits while others run: it begins before them, for its file's name, and
// ends behind them, as the one test that is parallel.
// KILO_LAB_REST changes the ten minutes ("1m").
func TestAtRest(t *testing.T) {
	period := 10 * time.Minute
	if text := os.Getenv("KILO_LAB_REST"); text != "" {
		period = must(time.ParseDuration(text))(t)
	}
	l := mesh(t, lab.Default())
	time.Sleep(20 * time.Second) // the last writes of the start: conditions, claims
	began, before := time.Now(), apiWrites(t, l)
	if len(must(l.AgentWrites(t.Context(), time.Time{}))(t)) == 0 {
		t.Fatal("agents wrote nothing from the start: this test sees nothing")
	}

	t.Parallel()
	time.Sleep(time.Until(began.Add(period)))
	for _, r := range must(l.AgentWrites(t.Context(), began))(t) {
		t.Errorf("%s", r)
	}
	for what, n := range apiWrites(t, l) {
		if n != before[what] {
			t.Errorf("%s: %s requests since the API server's start, %s before the rest", what, n, before[what])
		}
	}
	t.Logf("no write in %s", time.Since(began).Round(time.Second))
	if m := must(l.Matrix(t.Context()))(t); !m.OK() {
		t.Error(m)
	}
}

// apiWrites is what the API server's own metrics say about writes to Nodes
// (without those to their status, which are the kubelets') and Events.
func apiWrites(t *testing.T, l *lab.Lab) map[string]string {
	t.Helper()
	writes := map[string]string{}
	series := regexp.MustCompile(`^apiserver_request_total\{.*resource="(nodes|events)",.*subresource="",verb="(POST|PUT|PATCH|DELETE)",.*\} (\S+)$`)
	for line := range strings.Lines(must(l.Kubectl(t.Context(), "get", "--raw", "/metrics"))(t)) {
		if m := series.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			writes[m[0][:strings.LastIndexByte(m[0], ' ')]] = m[3]
		}
	}
	if len(writes) == 0 {
		t.Fatal("the API server counts no write at all: this test sees nothing")
	}
	return writes
}
