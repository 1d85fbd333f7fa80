package identity_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kilo-overlay/kilo/core/identity"
)

// A private key and its public key, printed by wg genkey and wg pubkey.
const (
	privateKey = "GNFltOEwTMzcYqN6wc2wBXNPVuBHoTp0XmlDPdRkT1M="
	publicKey  = "PaK4InuNKdKNEcUhG9pzSadMjOsgiUMlonf4W65Mggs="
)

func TestMadeOnceThenKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kilo", "key")
	first, created, err := identity.Load(path)
	if err != nil || !created || first == (wgtypes.Key{}) {
		t.Fatalf("first start: created %v, error %v", created, err)
	}
	second, created, err := identity.Load(path)
	if err != nil || created || second != first {
		t.Fatalf("second start: created %v, same key %v, error %v", created, second == first, err)
	}
	text, _ := os.ReadFile(path)
	if string(text) != first.String()+"\n" {
		t.Errorf("the file does not hold the key as one line of base64")
	}
	wantMode(t, path, 0o600)
	wantMode(t, filepath.Dir(path), 0o700)
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left behind beside the key: %v", names)
	}
}

func TestKilosFileIsTakenOver(t *testing.T) {
	for _, ending := range []string{"", "\n", "\r\n"} {
		path := write(t, privateKey+ending, 0o600)
		key, created, err := identity.Load(path)
		if err != nil || created {
			t.Fatalf("ending %q: created %v, error %v", ending, created, err)
		}
		if got := key.PublicKey().String(); got != publicKey {
			t.Errorf("ending %q: public key %s, want %s", ending, got, publicKey)
		}
		if after, _ := os.ReadFile(path); string(after) != privateKey+ending {
			t.Errorf("ending %q: the file was changed", ending)
		}
	}
}

func TestCorruptFileStopsAndStays(t *testing.T) {
	for name, content := range map[string]string{
		"empty":     "",
		"newline":   "\n",
		"truncated": privateKey[:20],
		"zeros":     wgtypes.Key{}.String(),
		"other":     "-----BEGIN OPENSSH PRIVATE KEY-----\n",
		"two keys":  privateKey + "\n" + privateKey + "\n",
		"huge":      strings.Repeat("A", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, content, 0o600)
			_, created, err := identity.Load(path)
			if err == nil || created {
				t.Fatalf("created %v, error %v: want an error", created, err)
			}
			for _, part := range []string{path, "no WireGuard private key", "delete it"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q: %v", part, err)
				}
			}
			if len(content) > 8 && strings.Contains(err.Error(), content[:8]) {
				t.Errorf("the error repeats the content: %v", err)
			}
			if after, _ := os.ReadFile(path); string(after) != content {
				t.Errorf("the file was changed")
			}
		})
	}
}

func TestDirectoryInPlaceOfFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	_, _, err := identity.Load(path)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("got %v", err)
	}
}

func TestOpenFileIsClosed(t *testing.T) {
	path := write(t, privateKey, 0o644)
	if _, _, err := identity.Load(path); err != nil {
		t.Fatal(err)
	}
	wantMode(t, path, 0o600)
}

func TestDanglingLinkIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, created, err := identity.Load(path); err == nil || created {
		t.Errorf("created %v, error %v: want an error", created, err)
	}
	if _, err := os.Readlink(path); err != nil {
		t.Errorf("the link is gone: %v", err)
	}
}

// Many starts at once agree on one key, and one of them made it.
func TestStartsAtOnceAgree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kilo", "key")
	const starts = 16
	keys, created := make([]wgtypes.Key, starts), make([]bool, starts)
	var wg sync.WaitGroup
	for i := range starts {
		wg.Go(func() {
			var err error
			if keys[i], created[i], err = identity.Load(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	makers := 0
	for i := range starts {
		if keys[i] != keys[0] {
			t.Errorf("start %d has another key than start 0", i)
		}
		if created[i] {
			makers++
		}
	}
	if makers != 1 {
		t.Errorf("%d starts say that they made the key, want 1", makers)
	}
}

func write(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %04o, want %04o", path, got, want)
	}
}
