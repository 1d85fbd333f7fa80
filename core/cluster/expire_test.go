package cluster_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
)

func TestExpire(t *testing.T) {
	noon := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	until := func(name string, at time.Time) model.Peer { return model.Peer{Name: name, ExpiresAt: at} }
	s := model.Snapshot{Peers: []model.Peer{
		until("ever", time.Time{}), until("later", noon.Add(2*time.Hour)), until("now", noon), until("past", noon.Add(-time.Second)), until("soon", noon.Add(time.Hour)),
	}}
	got, warnings, next := cluster.Expire(s, noon)
	if want := []string{"ever", "later", "soon"}; !slices.Equal(names(got.Peers), want) {
		t.Errorf("left %v, want %v", names(got.Peers), want)
	}
	if len(warnings) != 2 || warnings[0].Object != "peer/now" || !strings.Contains(warnings[0].Message, "2027-01-31T12:00:00Z") {
		t.Errorf("warnings %v", warnings)
	}
	if !next.Equal(noon.Add(time.Hour)) {
		t.Errorf("next at %s", next)
	}
	if len(s.Peers) != 5 {
		t.Error("the snapshot that was given is another one")
	}
}
