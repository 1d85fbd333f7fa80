package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/render"
)

func showconfNode(ctx context.Context, p *program, o *options) error {
	s, err := p.snapshot(ctx, o)
	if err != nil {
		return err
	}
	name := o.args[0]
	if !o.asPeer {
		return p.printConfig(render.NodeConfig(s, name, o.port))
	}
	peer, notes, err := render.LocationPeer(p.resolveEndpoints(ctx, s), name, o.extra)
	if err != nil {
		return err
	}
	return p.printPeer(o, name, peer, notes)
}

func showconfPeer(ctx context.Context, p *program, o *options) error {
	s, err := p.snapshot(ctx, o)
	if err != nil {
		return err
	}
	name := o.args[0]
	if !o.asPeer {
		return p.printConfig(render.OutsideConfig(p.resolveEndpoints(ctx, s), name))
	}
	peer, err := render.PeerAsPeer(s, name, o.extra)
	if err != nil {
		return err
	}
	return p.printPeer(o, name, peer, nil)
}

// printConfig prints a configuration, and its notes as warnings as well: the
// output most often goes into a file.
func (p *program) printConfig(c render.Config, err error) error {
	if err != nil {
		return err
	}
	for _, note := range c.Notes {
		p.warn(note)
	}
	_, err = io.WriteString(p.out, c.Text())
	return err
}

// printPeer prints one party in the form that was asked for.
func (p *program) printPeer(o *options, name string, peer render.Peer, notes []string) error {
	if o.output == "wireguard" {
		return p.printConfig(render.Config{Peers: []render.Peer{peer}, Notes: notes}, nil)
	}
	for _, note := range notes {
		p.warn(note)
	}
	text, err := json.MarshalIndent(resource(name, peer), "", "  ")
	if err != nil {
		return fmt.Errorf("write Peer %s as JSON: %w", name, err)
	}
	text = append(text, '\n')
	if o.output == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("write Peer %s as YAML: %w", name, err)
		}
	}
	_, err = p.out.Write(text)
	return err
}

// resource is a party as a Peer resource.
func resource(name string, peer render.Peer) api.Peer {
	out := api.Peer{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.Group + "/" + api.Version, Kind: api.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       api.PeerSpec{PublicKey: peer.Key.String(), PersistentKeepalive: peer.KeepaliveSeconds()},
	}
	for _, prefix := range peer.AllowedIPs {
		out.Spec.AllowedIPs = append(out.Spec.AllowedIPs, prefix.String())
	}
	switch e := peer.Endpoint; {
	case e.Host != "":
		out.Spec.Endpoint = &api.PeerEndpoint{DNS: e.Host, Port: int(e.Port)}
	case !e.IsZero():
		out.Spec.Endpoint = &api.PeerEndpoint{IP: e.Addr.String(), Port: int(e.Port)}
	}
	if !peer.PresharedKey.IsZero() {
		out.Spec.PresharedKey = api.Secret(peer.PresharedKeyText())
	}
	return out
}
