package cases

import (
	_ "embed"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:embed cases.txt
var list string

var id = regexp.MustCompile(`\bTC\d+`)

// Every case is named by a test or its data, and every name is a case's.
func TestEveryCaseIsTested(t *testing.T) {
	var listed []string
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "#") {
			listed = append(listed, id.FindAllString(line, 1)...)
		}
	}
	found := map[string]string{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "cases"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.Contains(filepath.ToSlash(path), "/testdata/"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, name := range id.FindAllString(string(text), -1) {
			found[name] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(listed) < 30 {
		t.Fatalf("%d cases: the list is not read", len(listed))
	}
	for _, name := range listed {
		if found[name] == "" {
			t.Errorf("no test names %s", name)
		}
	}
	for name, path := range found {
		if !slices.Contains(listed, name) {
			t.Errorf("%s names %s, which is no case", path, name)
		}
	}
}
