package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Request is one that the API server has answered, from its audit log.
type Request struct {
	At        time.Time
	User      string // AgentUser for agents
	UserAgent string
	Source    string // address, after translation by a router
	Verb      string
	Resource  string // "nodes", "nodes/status"
	Name      string // of the object
	Code      int
}

// Write tells whether the request changes, or tries to change, an object.
func (r Request) Write() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		// Questions that are asked by creating something.
		return !strings.HasSuffix(r.Resource, "reviews")
	}
	return false
}

func (r Request) String() string {
	return fmt.Sprintf("%s %s %s %s %s (%s): %d", r.At.Format("15:04:05.000"), r.User, r.Verb, r.Resource, r.Name, r.UserAgent, r.Code)
}

// Requests lists what the API server has answered since a time, oldest first.
// A watch is in it once, when it ends.
func (l *Lab) Requests(ctx context.Context, since time.Time) ([]Request, error) {
	// The log is written in batches of 200 ms.
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(400 * time.Millisecond):
	}
	f, err := os.Open(l.path("log", "audit.log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var requests []Request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Stage          string
			Verb           string
			UserAgent      string
			User           struct{ Username string }
			SourceIPs      []string
			ObjectRef      struct{ Resource, Subresource, Name string }
			ResponseStatus struct{ Code int }
			StageTimestamp time.Time
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the last line, half written
		}
		if e.Stage != "ResponseComplete" || e.StageTimestamp.Before(since) {
			continue
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		requests = append(requests, Request{
			At: e.StageTimestamp, User: e.User.Username, UserAgent: e.UserAgent, Source: strings.Join(e.SourceIPs, ","),
			Verb: e.Verb, Resource: resource, Name: e.ObjectRef.Name, Code: e.ResponseStatus.Code,
		})
	}
	return requests, lines.Err()
}

// AgentWrites lists the writes of all agents since a time.
func (l *Lab) AgentWrites(ctx context.Context, since time.Time) ([]Request, error) {
	all, err := l.Requests(ctx, since)
	return slices.DeleteFunc(all, func(r Request) bool { return r.User != AgentUser || !r.Write() }), err
}

// Metrics scrapes the machine's agent: series by their name and labels, as in
// `kilo_peers` or `kilo_errors_total{event="update"}`.
func (m *Machine) Metrics(ctx context.Context) (map[string]float64, error) {
	text, err := m.AgentGet(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(text)
}

func parseMetrics(text string) (map[string]float64, error) {
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil || i < 0 {
			return nil, fmt.Errorf("metrics line %q is not `series value`", line)
		}
		series[line[:i]] = v
	}
	return series, nil
}

// Sum adds up all series of a metric whatever their labels.
func Sum(series map[string]float64, metric string) float64 {
	total := 0.0
	for name := range maps.Keys(series) {
		if name == metric || strings.HasPrefix(name, metric+"{") {
			total += series[name]
		}
	}
	return total
}
