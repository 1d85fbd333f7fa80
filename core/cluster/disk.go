package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kilo-overlay/kilo/core/internal/wholefile"
	"github.com/kilo-overlay/kilo/core/model"
)

// The files of a directory that keeps the last good state.
//
// Preshared keys are in a file of their own, 0600 like the node's private key
// beside it, so that snapshot.json can be shown to anyone. A start without an
// API server needs them: a Peer configured without its preshared key would be
// cut off, or worse, be let in by a weaker handshake than its owner asked for.
// snapshot.json holds a fingerprint of each. A Peer whose preshared key is not
// there, or is another one, is not taken from disk at all: then nothing says
// what to do with it, and what the kernel has of it stays.
const (
	snapshotFile = "snapshot.json"
	secretFile   = "psk.json"

	diskVersion = 1
	// diskPause collects changes that come together.
	diskPause = 2 * time.Second
)

// kept is what one process leaves to the next.
type kept struct {
	Version int `json:"version"`
	// Node is whose directory it is: a copied disk tells nothing of another node.
	Node     string         `json:"node"`
	Snapshot model.Snapshot `json:"snapshot"`
	Inputs   model.Inputs   `json:"inputs"`
	// Fingerprints are those of preshared keys, by name of Peer.
	Fingerprints map[string]string `json:"presharedKeyFingerprints,omitempty"`
}

// secrets is the content of secretFile: preshared keys in base64 by name of Peer.
type secrets struct {
	Version int               `json:"version"`
	Keys    map[string]string `json:"presharedKeys"`
}

// encode writes a state as the contents of the two files; psk is nil where
// there is no preshared key.
func encode(k kept) (snapshot, psk []byte, err error) {
	k.Version = diskVersion
	k.Fingerprints = nil
	s := secrets{Version: diskVersion, Keys: make(map[string]string)}
	for _, p := range k.Snapshot.Peers {
		if p.PresharedKey.IsZero() {
			continue
		}
		if k.Fingerprints == nil {
			k.Fingerprints = make(map[string]string)
		}
		k.Fingerprints[p.Name] = p.PresharedKey.String()
		secret := p.PresharedKey.Bytes()
		s.Keys[p.Name] = base64.StdEncoding.EncodeToString(secret[:])
	}
	if snapshot, err = json.Marshal(k); err != nil {
		return nil, nil, err
	}
	if len(s.Keys) > 0 {
		psk, err = json.Marshal(s)
	}
	return snapshot, psk, err
}

// decodeKept reads what encode wrote. dropped names the Peers whose preshared
// key is not in psk.
func decodeKept(snapshot, psk []byte) (k kept, dropped []string, err error) {
	if err := json.Unmarshal(snapshot, &k); err != nil {
		return kept{}, nil, err
	}
	if k.Version != diskVersion {
		return kept{}, nil, fmt.Errorf("version %d is not known here", k.Version)
	}
	var s secrets
	if len(psk) > 0 && json.Unmarshal(psk, &s) != nil {
		s = secrets{} // its error may repeat what it holds
	}
	k.Snapshot.Peers = slices.DeleteFunc(k.Snapshot.Peers, func(p model.Peer) bool {
		want, secret := k.Fingerprints[p.Name]
		if !secret {
			return false
		}
		key, err := model.ParsePresharedKey(s.Keys[p.Name])
		if err != nil || key.String() != want {
			dropped = append(dropped, p.Name)
			return true
		}
		return false
	})
	for i := range k.Snapshot.Peers {
		p := &k.Snapshot.Peers[i]
		if _, secret := k.Fingerprints[p.Name]; secret {
			p.PresharedKey, _ = model.ParsePresharedKey(s.Keys[p.Name])
		}
	}
	k.Snapshot.Sort()
	k.Fingerprints = nil
	return k, dropped, nil
}

// disk writes states to a directory, in its own time.
type disk struct {
	dir  string
	log  *slog.Logger
	wake chan struct{}

	mu      sync.Mutex
	pending *kept

	// These belong to run.
	snapshot, psk []byte // as last written
	failing       bool
}

func newDisk(dir string, log *slog.Logger) *disk {
	return &disk{dir: dir, log: log, wake: make(chan struct{}, 1)}
}

// load reads what an earlier process on this node left; nothing usable there
// is no error, and stays as it is until there is something better to write.
func (d *disk) load(node string) kept {
	snapshot, err := os.ReadFile(filepath.Join(d.dir, snapshotFile))
	if errors.Is(err, fs.ErrNotExist) {
		return kept{}
	}
	psk, pskErr := os.ReadFile(filepath.Join(d.dir, secretFile))
	if pskErr != nil {
		psk = nil
	}
	var k kept
	var dropped []string
	if err == nil {
		k, dropped, err = decodeKept(snapshot, psk)
	}
	if err == nil && k.Node != node {
		err = fmt.Errorf("it is of node %q", k.Node)
	}
	if err != nil {
		d.log.Warn("the last state is of no use and is ignored", "file", filepath.Join(d.dir, snapshotFile), "error", err)
		return kept{}
	}
	for _, name := range dropped {
		d.log.Warn("the preshared key of a peer is not on disk; the peer is left as it is until the API server answers", "peer", name, "file", filepath.Join(d.dir, secretFile))
	}
	return k
}

// save has a state written soon. It does not wait.
func (d *disk) save(k kept) {
	d.mu.Lock()
	d.pending = &k
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run writes what save was given until ctx ends, the last state included.
func (d *disk) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-d.wake:
			select {
			case <-time.After(diskPause):
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		d.flush()
	}
}

func (d *disk) flush() {
	d.mu.Lock()
	k := d.pending
	d.pending = nil
	d.mu.Unlock()
	if k == nil {
		return
	}
	err := d.write(*k)
	if err != nil && !d.failing {
		d.log.Warn("cannot keep the last state for a start without an API server", "dir", d.dir, "error", err)
	}
	d.failing = err != nil
}

// write replaces the files where they differ. The secrets come first: a
// snapshot without them is worth less than secrets without a snapshot.
func (d *disk) write(k kept) error {
	snapshot, psk, err := encode(k)
	if err != nil {
		return err
	}
	if psk != nil && !bytes.Equal(psk, d.psk) {
		if err := wholefile.Replace(filepath.Join(d.dir, secretFile), psk); err != nil {
			return err
		}
	}
	if !bytes.Equal(snapshot, d.snapshot) {
		if err := wholefile.Replace(filepath.Join(d.dir, snapshotFile), snapshot); err != nil {
			return err
		}
	}
	if psk == nil {
		if err := os.Remove(filepath.Join(d.dir, secretFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	d.snapshot, d.psk = snapshot, psk
	return nil
}
