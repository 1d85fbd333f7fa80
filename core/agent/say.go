package agent

import (
	"context"
	"log/slog"

	"github.com/kilo-overlay/kilo/core/model"
)

// transitions remembers what was logged, so that each thing is said once when
// it begins and once when it ends.
type transitions struct {
	warnings map[model.Warning]bool
	words    map[string]string // topic -> what was said last
}

// Warnings logs those that are new or gone.
func (t *transitions) Warnings(now []model.Warning, log *slog.Logger) {
	next := make(map[model.Warning]bool, len(now))
	for _, w := range now {
		if !next[w] && !t.warnings[w] {
			level := slog.LevelWarn
			if w.Note {
				level = slog.LevelInfo
			}
			log.Log(context.Background(), level, w.Message, "kind", w.Kind, "object", w.Object)
		}
		next[w] = true
	}
	for w := range t.warnings {
		if !next[w] {
			log.Info("no longer: "+w.Message, "kind", w.Kind, "object", w.Object)
		}
	}
	t.warnings = next
}

// Says tells whether word is news on topic; at the beginning "" is what was
// said of everything.
func (t *transitions) Says(topic, word string) bool {
	if t.words[topic] == word {
		return false
	}
	if t.words == nil {
		t.words = map[string]string{}
	}
	t.words[topic] = word
	return true
}
