package detect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kilo-overlay/kilo/adapters/cilium"
	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
)

// Auto is the word for finding out which CNI the node runs.
const Auto = "auto"

// Options says where to look.
type Options struct {
	// Flannel is handed to the Flannel adapter; its SubnetFile and
	// NodeAnnotations also tell whether Flannel runs.
	Flannel flannel.Options
	// Cilium is handed to the Cilium adapter; its Socket also tells whether
	// Cilium runs.
	Cilium cilium.Options
}

// Adapter returns the adapter of that name: "flannel", "cilium", or for "auto"
// the one of the CNI that runs on this node.
//
// An *adapter.Unsupported error will not mend itself: there is no adapter of
// that name, or none for the CNI that runs here. Any other error means "not
// known yet", as after boot, before the CNI is up: ask again soon.
func Adapter(ctx context.Context, name string, o Options) (adapter.Adapter, error) {
	if o.Flannel.ChainedCilium == "" {
		// Where Cilium's agent keeps its state, and does not remove it.
		o.Flannel.ChainedCilium = filepath.Join(filepath.Dir(cmp.Or(o.Cilium.Socket, cilium.DefaultSocket)), "state")
	}
	switch name {
	case flannel.Name:
		return flannel.New(o.Flannel), nil
	case cilium.Name:
		return cilium.New(o.Cilium), nil
	case Auto:
		return find(ctx, o)
	}
	return nil, &adapter.Unsupported{What: fmt.Sprintf("adapter %q", name), Do: "use auto, flannel or cilium"}
}

// find looks for the CNI that runs. Only what does not outlive a reboot counts,
// files below /run. Annotations stay on a Node for ever, whatever CNI
// came later, so Flannel's alone say what to wait for, and no more.
//
// Cilium may be chained behind a CNI that does the routing, Flannel say; only
// its agent knows.
func find(ctx context.Context, o Options) (adapter.Adapter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	subnetFile, socket := o.Flannel.SubnetFile, o.Cilium.Socket
	if subnetFile == "" {
		subnetFile = flannel.DefaultSubnetFile
	}
	if socket == "" {
		socket = cilium.DefaultSocket
	}
	hasFlannel, err := exists(subnetFile)
	if err != nil {
		return nil, err
	}
	hasCilium, err := exists(socket)
	if err != nil {
		return nil, err
	}
	if !hasCilium {
		switch {
		case hasFlannel:
			return flannel.New(o.Flannel), nil
		case annotated(o):
			return nil, fmt.Errorf("this Node is annotated by flannel, but flannel is not up on it yet: waiting for %s", subnetFile)
		}
		return nil, fmt.Errorf("no CNI found yet: neither flannel (%s, Node annotations flannel.alpha.coreos.com/*) nor cilium (%s); waiting for one, --adapter names one",
			subnetFile, socket)
	}
	chained, err := cilium.Chaining(ctx, socket)
	switch {
	case err != nil && hasFlannel:
		return nil, fmt.Errorf("both flannel (%s) and cilium have left their mark on this node, and cilium does not say which of the two routes: waiting for it, --adapter names one: %w", subnetFile, err)
	case err != nil:
		return nil, err
	case chained != "" && hasFlannel:
		return flannel.New(o.Flannel), nil
	case chained != "":
		return nil, fmt.Errorf("cilium is chained (%s) behind another CNI on this node, and does not route; waiting for flannel (%s), the one that is served so", chained, subnetFile)
	case hasFlannel:
		return nil, fmt.Errorf("both flannel (%s) and cilium (%s) run on this node, and cilium says that it is not chained: remove the file of the one that is gone, or name the one that routes with --adapter",
			subnetFile, socket)
	}
	return cilium.New(o.Cilium), nil
}

func annotated(o Options) bool {
	return o.Flannel.NodeAnnotations != nil && flannel.Managed(o.Flannel.NodeAnnotations())
}

// exists tells whether there is a file. Not being allowed to look is an error,
// since the answer might be yes.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("looking for a CNI: %w", err)
}
