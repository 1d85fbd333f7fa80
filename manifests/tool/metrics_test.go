package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	alerts    = chart + "/files/alerts.yaml"
	dashboard = "../../docs/grafana/kilo.json"
)

// Alerts are what promtool takes, and ask for metrics that the agent has.
func TestAlerts(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	groups, errs := rulefmt.Parse([]byte(read(t, alerts)), false, model.UTF8Validation, p, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil || len(groups.Groups) != 1 || len(groups.Groups[0].Rules) < 8 {
		t.Fatalf("%s: %+v", alerts, groups)
	}
	for _, r := range groups.Groups[0].Rules {
		asks(t, p, r.Alert, r.Expr)
		if r.For == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: wants a time, a severity, a summary and a description", r.Alert)
		}
	}
}

// So does every panel of the dashboard.
func TestDashboard(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			for _, name := range asks(t, p, panel.Title, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")) {
				shown[name] = true
			}
		}
	}
	// And what the agent tells is shown; that it runs at all needs no picture.
	for _, name := range exposed(t) {
		if !shown[name] && name != "kilo_reconciles_total" {
			t.Errorf("%s is on no panel", name)
		}
	}
}

// asks returns the metrics that an expression asks for, all of which are the agent's.
func asks(t *testing.T, p parser.Parser, where, expr string) (names []string) {
	t.Helper()
	parsed, err := p.ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %s: %v", where, expr, err)
		return nil
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			name := strings.TrimSuffix(v.Name, "_bucket")
			if !slices.Contains(exposed(t), name) {
				t.Errorf("%s asks for %s, which no agent tells", where, v.Name)
			}
			names = append(names, name)
		}
		return nil
	})
	return names
}

// Every metric has its row, and no other has.
func TestMetricsAreDocumented(t *testing.T) {
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(kilo_[a-z_]+)`").FindAllStringSubmatch(read(t, "../../docs/monitoring.md"), -1) {
		rows = append(rows, m[1])
	}
	want := exposed(t)
	slices.Sort(rows)
	slices.Sort(want)
	if !slices.Equal(rows, want) {
		t.Errorf("docs/monitoring.md has %q, agents tell %q", rows, want)
	}
}

// exposed are the metrics in the agent's source, which registers them.
func exposed(t *testing.T) (names []string) {
	t.Helper()
	source, err := os.ReadFile("../../core/agent/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"(kilo_[a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		names = append(names, m[1])
	}
	if len(names) < 10 {
		t.Fatalf("found only %q in the agent's source", names)
	}
	return names
}
