package cilium

import (
	"context"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// rewatchAfter is how long a watch that ended rests.
const rewatchAfter = 5 * time.Second

// Watch implements adapter.Adapter: for this node's CiliumNode, and for Cilium's
// agent being started anew, which makes its socket anew. That is looked at now
// and then: a call of stat(2) every two seconds costs nothing.
func (a *Adapter) Watch(ctx context.Context, changed func()) error {
	tick := time.NewTicker(a.o.PollEvery)
	defer tick.Stop()
	var (
		node   watch.Interface
		events <-chan watch.Event
		due    time.Time // when to watch the CiliumNode again
		socket = stat(a.o.Socket)
	)
	defer func() {
		if node != nil {
			node.Stop()
		}
	}()
	for {
		if node == nil && !time.Now().Before(due) {
			var err error
			node, err = a.o.Nodes.Resource(ciliumNodes).Watch(ctx, metav1.ListOptions{
				FieldSelector: fields.OneTermEqualSelector("metadata.name", a.o.Node).String(),
			})
			due = time.Now().Add(rewatchAfter)
			if err == nil {
				events = node.ResultChan()
			} else {
				node = nil // an interface that holds a nil is none
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if now := stat(a.o.Socket); !sameFile(socket, now) {
				socket = now
				changed()
			}
		case e, ok := <-events:
			if !ok || e.Type == watch.Error {
				node.Stop()
				node, events = nil, nil
				due = time.Now().Add(rewatchAfter)
				continue
			}
			if a.see(e) {
				changed()
			}
		}
	}
}

// see keeps what the watch tells; false: it tells nothing of this node.
func (a *Adapter) see(e watch.Event) bool {
	object, ok := e.Object.(*unstructured.Unstructured)
	if !ok || object.GetName() != a.o.Node || e.Type == watch.Bookmark {
		return false
	}
	if e.Type == watch.Deleted {
		object = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = object
	return true
}

// stat is nil for a file that is not there.
func stat(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
