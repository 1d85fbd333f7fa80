package main

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/skip2/go-qrcode"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
)

// showconfFlags are what both forms of showconf take.
type showconfFlags struct {
	asPeer     bool
	output     string
	allowedIPs []string
	privateKey string
	check      func() error
}

func (f *showconfFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.asPeer, "as-peer", false, "print the party as a peer, to configure it on another WireGuard interface or in another cluster")
	f.check = choice(c, &f.output, "output", "o", "wireguard", "form of the output", "wireguard", "wg-quick", "yaml", "json", "qr")
	c.Flags().StringSliceVar(&f.allowedIPs, "allowed-ips", nil, "with --as-peer: further prefixes for the peer's allowed IPs")
	c.Flags().StringVar(&f.privateKey, "private-key", "", "with -o wg-quick or qr: file with the private key of the interface, as wg genkey prints it; - is standard input")
}

func showconfNode(p *program, o *options) *cobra.Command {
	var f showconfFlags
	c := &cobra.Command{
		Use: "node NAME", Short: "Print the WireGuard configuration of a node", Args: takes("NAME"),
		ValidArgsFunction: p.completeNodes(o),
		Long: `Prints what the WireGuard interface of a node holds, without the private key. Only
a location's gateway has peers.

With --as-peer it prints the node's location as a peer for another WireGuard
interface, or with -o yaml as a Peer resource for another cluster: the
location's pod prefixes, node addresses, WireGuard address and
allowed-location-ips, the endpoint's own address left out.

Preshared keys are part of what is printed.`,
		Example: `  kgctl showconf node e1
  kgctl showconf node e1 --as-peer -o yaml --allowed-ips 10.96.0.0/12 | \
    kubectl --context other apply -f -`,
	}
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		s, extra, err := f.begin(c.Context(), p, o)
		if err != nil {
			return err
		}
		name := args[0]
		if !f.asPeer {
			config, err := render.NodeConfig(s, name, o.port)
			if err != nil {
				return err
			}
			return p.printConfig(&f, config, render.NodeInterface(s, name, o.port), s.Node(name).Key)
		}
		peer, notes, err := render.LocationPeer(p.resolveEndpoints(c.Context(), s), name, extra)
		if err != nil {
			return err
		}
		return p.printPeer(&f, name, peer, notes)
	}
	return c
}

func showconfPeer(p *program, o *options) *cobra.Command {
	var f showconfFlags
	c := &cobra.Command{
		Use: "peer NAME", Short: "Print the WireGuard configuration that a Peer needs", Args: takes("NAME"),
		ValidArgsFunction: p.completePeers(o),
		Long: `Prints what the party behind a Peer needs for its own WireGuard interface: one
section for each location. A location that it cannot speak with is left out, which
a comment and a warning say. The addresses of endpoints are in no AllowedIPs, so
that wg-quick does not send the tunnel into itself.

-o wg-quick prints a whole file for wg-quick and the WireGuard apps, qr the same as
a QR code for a phone; the private key goes in with --private-key.

With --as-peer it prints the Peer itself, as a peer for another interface.

Preshared keys are part of what is printed.`,
		Example: `  kgctl showconf peer laptop >> /etc/wireguard/kilo.conf
  kgctl showconf peer laptop -o wg-quick --private-key key > /etc/wireguard/kilo.conf
  kgctl showconf peer phone -o qr --private-key key
  kgctl showconf peer laptop --as-peer -o yaml`,
	}
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		s, extra, err := f.begin(c.Context(), p, o)
		if err != nil {
			return err
		}
		name := args[0]
		if f.asPeer {
			peer, err := render.PeerAsPeer(s, name, extra)
			if err != nil {
				return err
			}
			return p.printPeer(&f, name, peer, nil)
		}
		config, err := render.OutsideConfig(p.resolveEndpoints(c.Context(), s), name)
		if err != nil {
			return err
		}
		return p.printConfig(&f, config, render.OutsideInterface(s, name), peerKey(s, name))
	}
	return c
}

// begin judges the flags and reads the cluster.
func (f *showconfFlags) begin(ctx context.Context, p *program, o *options) (s model.Snapshot, extra []netip.Prefix, err error) {
	if err := f.check(); err != nil {
		return s, nil, err
	}
	whole := f.output == "wg-quick" || f.output == "qr"
	switch {
	case f.asPeer && whole:
		return s, nil, usagef("--output=%s is a whole interface's: it does not go with --as-peer", f.output)
	case len(f.allowedIPs) > 0 && !f.asPeer:
		return s, nil, usagef("--allowed-ips needs --as-peer")
	case f.privateKey != "" && !whole:
		return s, nil, usagef("--private-key needs --output=wg-quick or qr")
	}
	if extra, err = parsePrefixes("allowed-ips", f.allowedIPs); err != nil {
		return s, nil, err
	}
	s, err = p.snapshot(ctx, o)
	return s, extra, err
}

func peerKey(s model.Snapshot, name string) model.Key {
	for i := range s.Peers {
		if s.Peers[i].Name == name {
			return s.Peers[i].Key
		}
	}
	return model.Key{}
}

// printConfig prints a configuration, and its notes as warnings as well: the
// output most often goes into a file. whose is the key that the interface has.
func (p *program) printConfig(f *showconfFlags, c render.Config, i render.Interface, whose model.Key) error {
	for _, note := range c.Notes {
		p.warn(note)
	}
	switch f.output {
	case "wireguard":
		_, err := io.WriteString(p.out, c.Text())
		return err
	case "yaml", "json":
		list := peerListObject{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
		for _, one := range c.Peers {
			list.Items = append(list.Items, resource(one.Name, one))
		}
		return p.printObject(f.output, list)
	}
	private, err := p.readPrivateKey(f.privateKey, whose)
	if err != nil {
		return err
	}
	return p.printQuick(f.output, c, i, private)
}

// printQuick prints a whole interface, as a file or as a QR code.
func (p *program) printQuick(form string, c render.Config, i render.Interface, private string) error {
	if private == "" {
		p.warn("the private key is missing in what is printed: put it in, or name its file with --private-key")
	}
	text := c.QuickText(i, private)
	if form == "qr" {
		code, err := qrcode.New(text, qrcode.Low)
		if err != nil {
			return fmt.Errorf("the configuration of %d bytes does not fit a QR code (%w): use -o wg-quick", len(text), err)
		}
		text = code.ToSmallString(false)
	}
	_, err := io.WriteString(p.out, text)
	return err
}

// printPeer prints one party in the form that was asked for.
func (p *program) printPeer(f *showconfFlags, name string, peer render.Peer, notes []string) error {
	for _, note := range notes {
		p.warn(note)
	}
	if f.output == "wireguard" {
		_, err := io.WriteString(p.out, render.Config{Peers: []render.Peer{peer}, Notes: notes}.Text())
		return err
	}
	return p.printObject(f.output, resource(name, peer))
}

// printObject prints a value for scripts.
func (p *program) printObject(form string, object any) error {
	text, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	text = append(text, '\n')
	if form == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
	}
	_, err = p.out.Write(text)
	return err
}

// peerListObject is Peers as kubectl applies several.
type peerListObject struct {
	metav1.TypeMeta `json:",inline"`
	Items           []api.Peer `json:"items"`
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

// readPrivateKey reads the private key whose public one is whose; "" for no file.
func (p *program) readPrivateKey(file string, whose model.Key) (string, error) {
	var text []byte
	var err error
	switch file {
	case "":
		return "", nil
	case "-":
		text, err = io.ReadAll(io.LimitReader(p.in, 4096))
	default:
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("--private-key: %w", err)
	}
	private := string(bytes.TrimSpace(text))
	public, err := publicKey(private)
	if err != nil {
		return "", fmt.Errorf("--private-key=%s: %w", file, err)
	}
	if public != whose {
		return "", fmt.Errorf("--private-key=%s: its public key is %s, and the cluster knows %s: it is the key of somebody else", file, public, whose)
	}
	return private, nil
}

// publicKey returns the public key of a private one in base64. Its error does not
// repeat the key.
func publicKey(private string) (model.Key, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(private))
	if err != nil || len(raw) != model.KeyLen {
		return model.Key{}, fmt.Errorf("not a WireGuard key: want 44 characters of base64, as wg genkey prints them")
	}
	key, err := ecdh.X25519().NewPrivateKey(raw)
	if err != nil {
		return model.Key{}, fmt.Errorf("not a WireGuard key")
	}
	return model.Key(key.PublicKey().Bytes()), nil
}
