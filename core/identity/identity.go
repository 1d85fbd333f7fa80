package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Path is where the key is kept unless told otherwise, as in Kilo.
const Path = "/var/lib/kilo/key"

// maxSize is far more than a key in base64 with its newline needs.
const maxSize = 1024

// Load returns the private key in the file at path. Where there is no file it
// makes one with a new key, 0600, in a directory that it makes 0700 if need
// be; created tells so. Of several processes that start at once one makes the
// key and all return it; nobody ever sees half a file.
//
// A file that others may read is closed to them first: its key is still the
// node's identity. No error repeats what the file holds.
func Load(path string) (key wgtypes.Key, created bool, err error) {
	key, err = read(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	if err := create(path); err == nil {
		created = true
	} else if !errors.Is(err, fs.ErrExist) {
		return wgtypes.Key{}, false, fmt.Errorf("private key %s: not there and cannot be made: %w; the agent needs a writable directory that survives restarts", path, err)
	}
	// What stands there now is the truth, whoever made it.
	if key, err = read(path); err != nil {
		return wgtypes.Key{}, false, err
	}
	return key, created, nil
}

func read(path string) (wgtypes.Key, error) {
	file, err := os.Open(path)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return wgtypes.Key{}, fmt.Errorf("private key %s: is %s, want a file; move it away and the agent makes a new key, or put the node's key there", path, kind(info.Mode()))
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := file.Chmod(0o600); err != nil {
			return wgtypes.Key{}, fmt.Errorf("private key %s: others may read it (mode %04o) and that cannot be changed: %w; give the file mode 0600 (for a Secret volume: defaultMode 0600)", path, info.Mode().Perm(), err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSize))
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key: %w", err)
	}
	key, err := wgtypes.ParseKey(string(bytes.TrimSpace(text)))
	if err != nil || key == (wgtypes.Key{}) {
		return wgtypes.Key{}, fmt.Errorf("private key %s: its %d bytes are no WireGuard private key (44 characters of base64); it was left as it is. Restore the file from a backup, or delete it to give this node a new identity, and restart the agent", path, info.Size())
	}
	return key, nil
}

func kind(mode fs.FileMode) string {
	if mode.IsDir() {
		return "a directory"
	}
	return "not a regular file (" + mode.Type().String() + ")"
}

// create puts a new key at path. It fails with fs.ErrExist where there is
// something already. The file appears complete or not at all: link(2), unlike
// rename(2), never replaces what another process has just put there.
func create(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, ".key-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.WriteString(key.String() + "\n")
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a new name in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
