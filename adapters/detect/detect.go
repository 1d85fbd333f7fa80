package detect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kilo-overlay/kilo/adapters/flannel"
	"github.com/kilo-overlay/kilo/core/adapter"
)

// Auto is the word for finding out which CNI the node runs.
const Auto = "auto"

// DefaultCiliumSocket is where Cilium's agent answers.
const DefaultCiliumSocket = "/var/run/cilium/cilium.sock"

// Options says where to look.
type Options struct {
	// Flannel is handed to the Flannel adapter; its SubnetFile and
	// NodeAnnotations also tell whether Flannel runs.
	Flannel flannel.Options
	// CiliumSocket is where Cilium's agent answers; "": DefaultCiliumSocket.
	CiliumSocket string
}

// Adapter returns the adapter of that name: "flannel", "cilium", or for "auto"
// the one of the CNI that runs on this node.
//
// An *adapter.Unsupported error will not mend itself: there is no adapter of
// that name, or none for the CNI that runs here. Any other error means "not
// known yet", as after boot, before the CNI is up: ask again soon.
func Adapter(ctx context.Context, name string, o Options) (adapter.Adapter, error) {
	switch name {
	case flannel.Name:
		return flannel.New(o.Flannel), nil
	case "cilium":
		return nil, noCilium()
	case Auto:
		return find(ctx, o)
	}
	return nil, &adapter.Unsupported{What: fmt.Sprintf("adapter %q", name), Do: "use auto, flannel or cilium"}
}

// find looks for the CNI that runs. Only what does not outlive a reboot counts,
// files below /run. Annotations stay on a Node for ever, whatever CNI
// came later, so Flannel's alone say what to wait for, and no more.
func find(ctx context.Context, o Options) (adapter.Adapter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	subnetFile, socket := o.Flannel.SubnetFile, o.CiliumSocket
	if subnetFile == "" {
		subnetFile = flannel.DefaultSubnetFile
	}
	if socket == "" {
		socket = DefaultCiliumSocket
	}
	hasFlannel, err := exists(subnetFile)
	if err != nil {
		return nil, err
	}
	hasCilium, err := exists(socket)
	if err != nil {
		return nil, err
	}
	switch {
	case hasFlannel && hasCilium:
		return nil, fmt.Errorf("both flannel (%s) and cilium (%s) have left their mark on this node: remove the file of the one that is gone, or name the one that serves with --adapter",
			subnetFile, socket)
	case hasFlannel:
		return flannel.New(o.Flannel), nil
	case hasCilium:
		return nil, noCilium()
	}
	if annotated(o) {
		return nil, fmt.Errorf("this Node is annotated by flannel, but flannel is not up on it yet: waiting for %s", subnetFile)
	}
	return nil, fmt.Errorf("no CNI found yet: neither flannel (%s, Node annotations flannel.alpha.coreos.com/*) nor cilium (%s); waiting for one, --adapter names one",
		subnetFile, socket)
}

func annotated(o Options) bool {
	return o.Flannel.NodeAnnotations != nil && flannel.Managed(o.Flannel.NodeAnnotations())
}

func noCilium() error {
	return &adapter.Unsupported{What: "cilium", Do: "this version has no adapter for it yet; it serves flannel"}
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
