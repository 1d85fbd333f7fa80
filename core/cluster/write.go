package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/core/model"
)

// Publish makes the local Node say what p says. It writes only what differs
// from what stands there, our own last write included, and nothing at all when
// nothing does. An error says why nothing was written; trying again later is
// the caller's to decide.
func (c *Cluster) Publish(ctx context.Context, p model.Published) error {
	return c.update(ctx, types.MergePatchType, "", func(n *corev1.Node) []byte { return Patch(n, p) })
}

// Condition tells a transition of the agent on its Node as the condition
// KiloMesh. It writes only when ready or reason, a CamelCase word, is new; the
// message goes along and is no reason of its own. The condition says when it
// changed and does not claim to be live.
func (c *Cluster) Condition(ctx context.Context, ready bool, reason, message string) error {
	return c.update(ctx, types.StrategicMergePatchType, "status", func(n *corev1.Node) []byte {
		return ConditionPatch(n, ready, reason, message, time.Now())
	})
}

// update writes to the local Node what patch finds to be written.
func (c *Cluster) update(ctx context.Context, kind types.PatchType, subresource string, patch func(*corev1.Node) []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	node := c.current()
	if node == nil {
		return fmt.Errorf("publish on node %s: the API server has not shown this Node yet", c.config.Node)
	}
	body := patch(node)
	if body == nil {
		return nil
	}
	clients, err := c.connect()
	if err != nil {
		return err
	}
	after, err := patchNode(ctx, clients, node.Name, kind, subresource, body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if after = slim(after, c.config.TopologyLabel, c.config.Node); c.own != nil && newer(after, c.own) {
		c.written = after
	}
	c.mu.Unlock()
	return nil
}

// current is the local Node as it is known to stand in the API server: as
// watched or, while the watch lags behind, as our last write left it.
func (c *Cluster) current() *corev1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written != nil {
		return c.written
	}
	return c.own
}

func patchNode(ctx context.Context, c *clients, name string, kind types.PatchType, subresource string, body []byte) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	request := c.core.Patch(kind).Resource("nodes").Name(name).Body(body)
	what := "nodes"
	if subresource != "" {
		request, what = request.SubResource(subresource), "nodes/"+subresource
	}
	var after corev1.Node
	if err := request.Do(ctx).Into(&after); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("publish on node %s: %w; the service account needs the verb patch on %s, see manifests/rbac.yaml", name, err, what)
		}
		return nil, fmt.Errorf("publish on node %s: %w", name, err)
	}
	return &after, nil
}

// Clear takes everything off the local Node that an agent wrote there:
// annotations, the labels that are ours, the condition. It needs no Run. A
// Node that is gone has nothing on it.
func (c *Cluster) Clear(ctx context.Context) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	clients, err := c.connect()
	if err != nil {
		return err
	}
	node, err := getNode(ctx, clients, c.config.Node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clear node %s: %w", c.config.Node, err)
	}
	if body := ClearPatch(node); body != nil {
		if _, err := patchNode(ctx, clients, node.Name, types.MergePatchType, "", body); err != nil {
			return err
		}
	}
	if body := clearConditionPatch(node); body != nil {
		if _, err := patchNode(ctx, clients, node.Name, types.StrategicMergePatchType, "status", body); err != nil {
			return err
		}
	}
	return nil
}

func getNode(ctx context.Context, c *clients, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var node corev1.Node
	err := c.core.Get().Resource("nodes").Name(name).Do(ctx).Into(&node)
	return &node, err
}
