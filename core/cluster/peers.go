package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kilo-overlay/kilo/core/api"
)

// The functions of this file are for tools. Of a Config they use REST and Version.

// ListPeers returns all Peers as they are stored. One that cannot be decoded comes
// with its metadata alone.
func ListPeers(ctx context.Context, c Config) ([]api.Peer, error) {
	clients, err := c.kgctl()
	if err != nil {
		return nil, err
	}
	list, err := clients.peers.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list peers.kilo.squat.ai: %w", err)
	}
	out := make([]api.Peer, 0, len(list.Items))
	for i := range list.Items {
		p, err := stored(&list.Items[i])
		if err != nil {
			p = api.Peer{}
			p.Name, p.CreationTimestamp = list.Items[i].GetName(), list.Items[i].GetCreationTimestamp()
		}
		out = append(out, p)
	}
	return out, nil
}

func stored(u *unstructured.Unstructured) (api.Peer, error) {
	text, err := u.MarshalJSON()
	if err != nil {
		return api.Peer{}, err
	}
	return DecodePeer(text)
}

// CreatePeer stores a new Peer, and returns it as it was stored.
func CreatePeer(ctx context.Context, c Config, p api.Peer) (api.Peer, error) {
	clients, err := c.kgctl()
	if err != nil {
		return p, err
	}
	p.APIVersion, p.Kind = api.Group+"/"+api.Version, api.Kind
	text, err := json.Marshal(p)
	if err != nil {
		return p, err
	}
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(text); err != nil {
		return p, err
	}
	made, err := clients.peers.Create(ctx, &u, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return p, fmt.Errorf("there is a Peer %s already; take another name, or remove it: kgctl peer rm %[1]s", p.Name)
	case err != nil:
		return p, fmt.Errorf("create Peer %s: %w", p.Name, err)
	}
	return stored(made)
}

// UpdatePeer gives a stored Peer another key, endpoint, keepalive and allowed IPs,
// and the labels and annotations of p. What else its owner has said of it stays.
func UpdatePeer(ctx context.Context, c Config, p api.Peer) error {
	clients, err := c.kgctl()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": p.Labels, "annotations": p.Annotations},
		"spec": map[string]any{
			"publicKey": p.Spec.PublicKey, "endpoint": p.Spec.Endpoint,
			"persistentKeepalive": p.Spec.PersistentKeepalive, "allowedIPs": p.Spec.AllowedIPs,
		},
	})
	if err != nil {
		return err
	}
	if _, err := clients.peers.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("change Peer %s: %w", p.Name, err)
	}
	return nil
}

// ID tells clusters apart: the UID of the namespace kube-system, which every cluster
// has from its beginning to its end.
func ID(ctx context.Context, c Config) (string, error) {
	clients, err := c.kgctl()
	if err != nil {
		return "", err
	}
	var n corev1.Namespace
	if err := clients.core.Get().Resource("namespaces").Name(metav1.NamespaceSystem).Do(ctx).Into(&n); err != nil {
		return "", fmt.Errorf("the namespace kube-system, by which the cluster is known: %w", err)
	}
	return string(n.UID), nil
}

// DeletePeer removes a Peer; its access ends within moments.
func DeletePeer(ctx context.Context, c Config, name string) error {
	clients, err := c.kgctl()
	if err != nil {
		return err
	}
	err = clients.peers.Delete(ctx, name, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no Peer %s; see: kgctl peer list", name)
	case err != nil:
		return fmt.Errorf("delete Peer %s: %w", name, err)
	}
	return nil
}

// DNSAddress returns where the cluster's names are answered: the address of the
// Service kube-system/kube-dns.
func DNSAddress(ctx context.Context, c Config) (netip.Addr, error) {
	clients, err := c.kgctl()
	if err != nil {
		return netip.Addr{}, err
	}
	var s corev1.Service
	if err := clients.core.Get().Namespace("kube-system").Resource("services").Name("kube-dns").Do(ctx).Into(&s); err != nil {
		return netip.Addr{}, fmt.Errorf("the Service kube-system/kube-dns: %w", err)
	}
	a, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return a, fmt.Errorf("the Service kube-system/kube-dns has no address of its own (clusterIP %q)", s.Spec.ClusterIP)
	}
	return a, nil
}
