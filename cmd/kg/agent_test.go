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

// A kubeconfig that is there is what counts; one that is not leaves the pod's own
// service account, and only to who has one.
func TestWayToTheAPIServer(t *testing.T) {
	dir := t.TempDir()
	there, away, broken := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "none"), filepath.Join(dir, "broken")
	for path, text := range map[string]string{
		there:  `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://203.0.113.1:6443"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`,
		broken: "{",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := func() (*rest.Config, error) { return &rest.Config{Host: "https://10.96.0.1:443"}, nil }
	noPod := func() (*rest.Config, error) { return nil, rest.ErrNotInCluster }
	for _, c := range []struct {
		name, kubeconfig, master string
		inPod                    func() (*rest.Config, error)
		want, says, err          string
	}{
		{name: "nothing said", inPod: pod, want: "https://10.96.0.1:443"},
		{name: "nothing said, and no pod", inPod: noPod, err: "--kubeconfig or a --master"},
		{name: "a kubeconfig", kubeconfig: there, inPod: pod, want: "https://203.0.113.1:6443"},
		{name: "a server beside it", kubeconfig: there, master: "https://203.0.113.2:6443", inPod: pod, want: "https://203.0.113.2:6443"},
		{name: "a kubeconfig that is not there", kubeconfig: away, inPod: pod, want: "https://10.96.0.1:443", says: away},
		{name: "a kubeconfig that is not there, and no pod", kubeconfig: away, inPod: noPod, err: away},
		{name: "a kubeconfig that is none", kubeconfig: broken, inPod: pod, err: broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log strings.Builder
			got, err := restConfig(&options{kubeconfig: c.kubeconfig, master: c.master}, c.inPod, newLog(&log, "info"))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || got.Host != c.want {
				t.Fatalf("got %+v, error %v; want %s", got, err, c.want)
			}
			if c.says == "" && log.Len() > 0 || !strings.Contains(log.String(), c.says) {
				t.Errorf("the log says %q, want %q", log.String(), c.says)
			}
		})
	}
}
