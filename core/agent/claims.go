package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kilo-overlay/kilo/core/failover"
	"github.com/kilo-overlay/kilo/core/internal/wholefile"
)

// ClaimsFile keeps, in Config.Dir, who was heard to serve which location. An agent
// that starts without an API server must not go back to a gateway that is gone.
const ClaimsFile = "claims.json"

type claims struct {
	Version int            `json:"version"`
	Node    string         `json:"node"` // a copied disk tells nothing of another node
	Book    *failover.Book `json:"claims"`
}

const claimsVersion = 1

func loadClaims(dir, node string, into *failover.Book) error {
	path := filepath.Join(dir, ClaimsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c := claims{Book: &failover.Book{}}
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s is no record of claims, and not used: %w", path, err)
	}
	if c.Version == claimsVersion && c.Node == node && c.Book != nil {
		*into = *c.Book
	}
	return nil
}

func saveClaims(dir, node string, book *failover.Book) error {
	text, err := json.Marshal(claims{claimsVersion, node, book})
	if err != nil {
		return err
	}
	return wholefile.Replace(filepath.Join(dir, ClaimsFile), append(text, '\n'))
}
