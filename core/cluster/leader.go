package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/core/api"
)

// SetLeader writes the annotation kilo.squat.ai/leader on a node, by which a person
// asks for it as its location's gateway, or takes it away.
func SetLeader(ctx context.Context, c Config, node string, leader bool) error {
	clients, err := c.kgctl()
	if err != nil {
		return err
	}
	var value any // null takes it away (RFC 7396)
	if leader {
		value = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{api.Leader: value}}})
	if err != nil {
		return err
	}
	err = clients.core.Patch(types.MergePatchType).Resource("nodes").Name(node).Body(patch).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %s; see: kgctl nodes", node)
	case err != nil:
		return fmt.Errorf("node %s: annotation %s: %w", node, api.Leader, err)
	}
	return nil
}
