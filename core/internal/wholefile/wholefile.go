// Package wholefile writes files that are there whole or not at all: what a node
// keeps must outlive a power cut at any moment.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace puts content at path, 0600, in place of what was there. A directory that
// is missing is made, 0700.
func Replace(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(content)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
