package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kilo-overlay/kilo/core/firewall"
	"github.com/kilo-overlay/kilo/core/internal/wholefile"
)

// UndoFile, in the state directory, records what is foreign and was changed, so
// that it can be undone by whoever comes later.
const UndoFile = "undo.json"

const undoVersion = 1

// undo is the content of UndoFile.
type undo struct {
	Version int `json:"version"`
	// ForwardAccepts are the chains of others that hold, or may hold, an accept
	// of ours.
	ForwardAccepts []firewall.ID `json:"forwardAccepts"`
}

// readUndo returns the record in dir; none where there is no file. One that
// cannot be understood is an error, and as good as none: what is ours bears our
// comment.
func readUndo(dir string) ([]firewall.ID, error) {
	path := filepath.Join(dir, UndoFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var u undo
	if err := json.Unmarshal(text, &u); err != nil {
		return nil, fmt.Errorf("%s is no record of what was changed: %w", path, err)
	}
	if u.Version != undoVersion {
		return nil, fmt.Errorf("%s: version %d is not known here", path, u.Version)
	}
	return u.ForwardAccepts, nil
}

// writeUndo replaces the record as a whole; an empty one is no file.
func writeUndo(dir string, chains []firewall.ID) error {
	path := filepath.Join(dir, UndoFile)
	if len(chains) == 0 {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	text, err := json.MarshalIndent(undo{undoVersion, chains}, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Replace(path, append(text, '\n'))
}
