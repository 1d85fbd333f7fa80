package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A key file that holds no key stops the agent with a sentence and stays as it
// is: overwriting it would make the node another party to everyone.
func TestCorruptKeyStopsTheAgent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, keyFile)
	if err := os.WriteFile(path, []byte("half a ke"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"--hostname=e1", "--state-dir=" + dir, "--master=http://127.0.0.1:1"}, func(string) string { return "" }, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v; want one that names %s", err, path)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "half a ke" {
		t.Errorf("the file now holds %q, %v", b, err)
	}
}

// One agent a node; a second one waits for the first to end, and then goes on.
func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kilo")
	unlock, err := lock(t.Context(), dir, lockFile, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(t.Context(), dir, lockFile, 200*time.Millisecond); !errors.Is(err, errRuns) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second lock: %v; want errRuns and the directory's name", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := lock(ctx, dir, lockFile, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that is given up: %v", err)
	}
	time.AfterFunc(200*time.Millisecond, unlock)
	again, err := lock(t.Context(), dir, lockFile, time.Minute)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	again()
}

// An agent that runs, or a process that carries packets, keeps uninstall from
// removing what would come back.
func TestUninstallBesideAnAgent(t *testing.T) {
	for _, file := range []string{lockFile, deviceLockFile} {
		dir := t.TempDir()
		unlock, err := lock(t.Context(), dir, file, 0)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = run(t.Context(), []string{"uninstall", "--hostname=e1", "--state-dir=" + dir, "--master=http://127.0.0.1:1"}, func(string) string { return "" }, &out, io.Discard)
		if !errors.Is(err, errRuns) || !strings.Contains(err.Error(), file) || out.Len() > 0 {
			t.Errorf("uninstall: %v, %q", err, out.String())
		}
		unlock()
	}
}

func TestRemoveFiles(t *testing.T) {
	fill := func() string {
		dir := t.TempDir()
		for _, name := range []string{keyFile, "snapshot.json", "psk.json", lockFile, deviceLockFile} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	left := func(dir string) (names []string) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	dir := fill()
	if err := removeFiles(dir, false, io.Discard); err != nil {
		t.Error(err)
	}
	if names := left(dir); len(names) != 1 || names[0] != keyFile {
		t.Errorf("left %v; want the key alone", names)
	}
	if err := removeFiles(dir, true, io.Discard); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("--purge left %v", left(dir))
	}
	if err := removeFiles(dir, true, io.Discard); err != nil {
		t.Errorf("where nothing is: %v", err)
	}
	dir = fill()
	if err := os.WriteFile(filepath.Join(dir, "somebody-else's"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeFiles(dir, true, io.Discard); err != nil {
		t.Error(err)
	}
	if names := left(dir); len(names) != 1 {
		t.Errorf("left %v; want what is not ours", names)
	}
}

func TestCountWrites(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	c := &rest.Config{Host: s.URL}
	writes := countWrites(c)
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct{ method, path string }{
		{"GET", "/api/v1/nodes"}, {"PATCH", "/api/v1/nodes/e1"}, {"POST", "/api/v1/namespaces/default/events"},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"},
	} {
		q, err := http.NewRequest(r.method, s.URL+r.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
	}
	if writes() != 2 {
		t.Errorf("%v writes counted; want the PATCH and the Event", writes())
	}
}
