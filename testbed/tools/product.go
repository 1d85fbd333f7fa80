package tools

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildProduct builds the product's own commands into bin/ of the source tree,
// as `make build` does, and returns their paths by name: kg, kgctl, kilolab.
// Tests call it so that they never try yesterday's agent; nothing is linked
// when nothing has changed. The Go command replaces a binary by a new file, so
// processes that run from the old one are not disturbed.
func BuildProduct(ctx context.Context) (Paths, error) {
	root, err := SourceRoot()
	if err != nil {
		return nil, err
	}
	gotool, err := findGo()
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(root, "bin")
	// Two test binaries may come here at once; the second finds all done.
	held, err := lock(ctx, bin, newProgress(os.Stderr))
	if err != nil {
		return nil, err
	}
	defer held.Close()

	args := []string{"build", "-trimpath", "-o", bin + string(filepath.Separator)}
	if _, err := gotool.run(ctx, root, held, append(args, productPackages()...)...); err != nil {
		return nil, fmt.Errorf("build the product: %w", err)
	}
	paths := Paths{}
	for _, pkg := range productPackages() {
		name := filepath.Base(pkg)
		paths[name] = filepath.Join(bin, name)
		if _, err := exec.LookPath(paths[name]); err != nil {
			return nil, fmt.Errorf("%s was built but cannot be run: %w", pkg, err)
		}
	}
	return paths, nil
}

func productPackages() []string {
	return []string{"./cmd/kg", "./cmd/kgctl", "./testbed/kilolab"}
}
