package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
)

// newPeer is what peer add is told.
type newPeer struct {
	allowedIPs, to     []string
	pool               string
	endpoint           string
	keepalive          uint16
	expires            time.Duration
	presharedKey       bool
	privateKey, output string
}

func peerAdd(p *program, o *options) *cobra.Command {
	var n newPeer
	c := &cobra.Command{
		Use: "add NAME", Short: "Let a party in: make its keys, register it, print its configuration", Args: takes("NAME"),
		Long: `Makes a key pair, registers a Peer with the public key, and prints the WireGuard
configuration for the party, private key included: it is nowhere else, so keep what
is printed, or name a file for it with --private-key. The private key never leaves
this machine.

Without --allowed-ips the Peer gets the first free address of --pool.`,
		Example: `  kgctl peer add laptop > /etc/wireguard/kilo.conf && wg-quick up kilo
  kgctl peer add phone -o qr
  kgctl peer add guest --expires 8h --to service:kube-system/kube-dns,namespace:shop
  kgctl peer add office --allowed-ips 192.168.50.0/24 --endpoint office.example.com:51820 --private-key office.key`,
	}
	f := c.Flags()
	f.StringSliceVar(&n.allowedIPs, "allowed-ips", nil, "the prefixes behind the Peer")
	f.StringVar(&n.pool, "pool", "10.5.0.0/24", "where addresses for Peers are taken from")
	f.StringVar(&n.endpoint, "endpoint", "", "host:port at which the Peer can be reached, if it can")
	f.Uint16Var(&n.keepalive, "persistent-keepalive", 25, "seconds between keepalives; 0 is off")
	f.DurationVar(&n.expires, "expires", 0, "how long the Peer has access, such as 8h; 0 is for ever")
	f.StringSliceVar(&n.to, "to", nil, "all that the Peer may begin to speak to: prefixes, service:NAMESPACE/NAME, namespace:NAME (default everything)")
	f.BoolVar(&n.presharedKey, "preshared-key", false, "make a preshared key as well, kept in the Peer")
	f.StringVar(&n.privateKey, "private-key", "", "file with the private key; made, for the owner alone, where it is not there")
	check := choice(c, &n.output, "output", "o", "wg-quick", "form of the output", "wg-quick", "wireguard", "qr")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		return p.addPeer(c.Context(), o, args[0], n)
	}
	return c
}

func (p *program) addPeer(ctx context.Context, o *options, name string, n newPeer) error {
	s, private, public, err := p.register(ctx, o, name, n)
	if err != nil {
		return err
	}
	outside, err := render.OutsideConfig(p.resolveEndpoints(ctx, s), name)
	if err != nil {
		return err
	}
	f := showconfFlags{output: n.output}
	if n.output == "wireguard" {
		return p.printConfig(&f, outside, render.Interface{}, public)
	}
	for _, note := range outside.Notes {
		p.warn(note)
	}
	return p.printQuick(n.output, outside, render.OutsideInterface(s, name), private)
}

// register makes or reads the keys and stores the Peer. The snapshot that it
// returns has the Peer in it.
func (p *program) register(ctx context.Context, o *options, name string, n newPeer) (s model.Snapshot, private string, public model.Key, err error) {
	fail := func(err error) (model.Snapshot, string, model.Key, error) { return s, "", public, err }
	pool, err := netip.ParsePrefix(n.pool)
	if err != nil {
		return fail(usagef("--pool=%s: not a prefix such as 10.5.0.0/24", n.pool))
	}
	allowed, err := parsePrefixes("allowed-ips", n.allowedIPs)
	if err != nil {
		return fail(err)
	}
	to, err := parseDestinations(n.to)
	if err != nil {
		return fail(err)
	}
	if s, err = p.snapshot(ctx, o); err != nil {
		return fail(err)
	}
	config, err := clusterConfig(o)
	if err != nil {
		return fail(err)
	}
	stored, err := cluster.ListPeers(ctx, config)
	if err != nil {
		return fail(err)
	}
	if slices.ContainsFunc(stored, func(s api.Peer) bool { return s.Name == name }) {
		return fail(fmt.Errorf("there is a Peer %s already; take another name, or remove it: kgctl peer rm %[1]s", name))
	}
	if len(allowed) == 0 {
		address, err := freeAddress(pool, s, stored)
		if err != nil {
			return fail(err)
		}
		allowed = []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
	}
	if private, public, err = n.key(); err != nil {
		return fail(err)
	}
	object := n.resource(name, public, allowed, to)

	// What the agents would say of it, they say here, before anything is stored.
	peer, err := cluster.ParsePeer(object)
	if err != nil {
		return fail(err)
	}
	peer.Seq = 1<<63 - 1 // the youngest
	s.Peers = append(slices.Clone(s.Peers), peer)
	s.Sort()
	s, refused := cluster.Admit(s)
	for _, w := range refused {
		if w.Object == "peer/"+name {
			return fail(errors.New(w.Message))
		}
	}
	if _, err := cluster.CreatePeer(ctx, config, object); err != nil {
		return fail(err)
	}
	return s, private, public, nil
}

// key reads the private key's file, or makes a key and, where a file is named, the
// file. An existing file is never written.
func (n *newPeer) key() (private string, public model.Key, err error) {
	if n.privateKey != "" {
		text, err := os.ReadFile(n.privateKey)
		if err == nil {
			private = strings.TrimSpace(string(text))
			if public, err = publicKey(private); err != nil {
				return "", public, fmt.Errorf("--private-key=%s: %w", n.privateKey, err)
			}
			return private, public, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", public, fmt.Errorf("--private-key: %w", err)
		}
	}
	var raw [model.KeyLen]byte
	_, _ = rand.Read(raw[:]) // never fails
	// As wg genkey does (RFC 7748, section 5).
	raw[0] &= 248
	raw[31] = raw[31]&127 | 64
	private = base64.StdEncoding.EncodeToString(raw[:])
	if public, err = publicKey(private); err != nil {
		return "", public, err
	}
	if n.privateKey != "" {
		f, err := os.OpenFile(n.privateKey, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return "", public, fmt.Errorf("--private-key: %w", err)
		}
		_, err = f.WriteString(private + "\n")
		if err := errors.Join(err, f.Close()); err != nil {
			return "", public, fmt.Errorf("--private-key: %w", err)
		}
	}
	return private, public, nil
}

func (n *newPeer) resource(name string, key model.Key, allowed []netip.Prefix, to []api.Destination) api.Peer {
	out := api.Peer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.PeerSpec{PublicKey: key.String(), PersistentKeepalive: int(n.keepalive)}}
	for _, prefix := range allowed {
		out.Spec.AllowedIPs = append(out.Spec.AllowedIPs, prefix.String())
	}
	out.Spec.AllowedDestinations = to
	if n.endpoint != "" {
		var e api.PeerEndpoint
		if err := e.UnmarshalJSON([]byte(fmt.Sprintf("%q", n.endpoint))); err == nil {
			out.Spec.Endpoint = &e
		} else {
			out.Spec.Endpoint = &api.PeerEndpoint{DNS: n.endpoint} // to be refused by name
		}
	}
	if n.expires > 0 {
		at := metav1.NewTime(time.Now().Add(n.expires).UTC().Truncate(time.Second))
		out.Spec.ExpiresAt = &at
	}
	if n.presharedKey {
		var raw [model.KeyLen]byte
		_, _ = rand.Read(raw[:])
		out.Spec.PresharedKey = api.Secret(base64.StdEncoding.EncodeToString(raw[:]))
	}
	return out
}

// parseDestinations reads --to.
func parseDestinations(texts []string) (out []api.Destination, err error) {
	for _, text := range texts {
		kind, name, named := strings.Cut(text, ":")
		namespace, service, has := strings.Cut(name, "/")
		switch {
		case named && kind == "namespace" && !has && name != "":
			out = append(out, api.Destination{Namespace: name})
		case named && kind == "service" && has && namespace != "" && service != "":
			out = append(out, api.Destination{Namespace: namespace, Service: service})
		default:
			prefixes, err := parsePrefixes("to", []string{text})
			if err != nil {
				return nil, usagef("--to: %q is neither a prefix such as 10.96.0.0/12 nor service:NAMESPACE/NAME or namespace:NAME", text)
			}
			out = append(out, api.Destination{Prefix: prefixes[0].String()})
		}
	}
	return out, nil
}

// freeAddress is the first address of a pool that nobody has, the network's own
// left out. Peers that are not served count too: their owners think it theirs.
func freeAddress(pool netip.Prefix, s model.Snapshot, stored []api.Peer) (netip.Addr, error) {
	var taken []netip.Prefix
	for i := range stored {
		for _, text := range stored[i].Spec.AllowedIPs {
			if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 {
				taken = append(taken, p)
			}
		}
	}
	probe := s
	probe.Peers = nil
	var nobody model.Key
	for i := range nobody {
		nobody[i] = 0xff // no point on the curve has this form
	}
	for a := pool.Masked().Addr().Next(); pool.Contains(a); a = a.Next() {
		one := netip.PrefixFrom(a, a.BitLen())
		if i := slices.IndexFunc(taken, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 {
			if pool.Bits() < taken[i].Bits() || !pool.Overlaps(taken[i]) {
				continue
			}
			break // one Peer has the whole pool
		}
		probe.Peers = []model.Peer{{Name: "new", Key: nobody, AllowedIPs: []netip.Prefix{one}}}
		if admitted, _ := cluster.Admit(probe); len(admitted.Peers) == 1 {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("--pool=%s has no free address: name another pool, or --allowed-ips", pool)
}

func peerList(p *program, o *options) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the Peers, and how they fare", Args: takes(),
		Long: `Lists the Peers with what stood in their status at their last transition. What
the gateways hear of them at this moment shows: kgctl peers`,
		Example: "  kgctl peer list\n  kgctl peer list -o json",
	}
	check := choice(c, &output, "output", "o", "table", "form of the output", "table", "json", "yaml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return err
		}
		config, err := clusterConfig(o)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), loadTimeout)
		defer cancel()
		list, err := cluster.ListPeers(ctx, config)
		if err != nil {
			return err
		}
		if output != "table" {
			for i := range list {
				list[i].ManagedFields = nil
				if list[i].Spec.PresharedKey != "" {
					list[i].Spec.PresharedKey = "(secret)"
				}
			}
			return p.printObject(output, peerListObject{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, list})
		}
		_, err = fmt.Fprint(p.out, peerTable(list, time.Now()))
		return err
	}
	return c
}

// peerTable shows Peers as they are stored.
func peerTable(list []api.Peer, now time.Time) render.Table {
	t := render.Table{Header: []string{"NAME", "ALLOWED IPS", "ENDPOINT", "READY", "WHY", "HANDSHAKE", "EXPIRES", "AGE"}}
	for i := range list {
		peer := &list[i]
		ready, why, handshake, expires, endpoint := "", "", "", "", ""
		if st := peer.Status; st != nil {
			for _, c := range st.Conditions {
				switch c.Type {
				case api.PeerReady:
					ready = string(c.Status)
					if why == "" {
						why = c.Reason
					}
				case api.PeerAccepted:
					if c.Status != metav1.ConditionTrue {
						why = c.Reason
					}
				}
			}
			if st.LastHandshake != nil {
				handshake = render.Ago(now.Sub(st.LastHandshake.Time))
			}
		}
		if e := peer.Spec.ExpiresAt; e != nil {
			if expires = "in " + render.Age(e.Sub(now)); !e.After(now) {
				expires = "expired"
			}
		}
		if e := peer.Spec.Endpoint; e != nil {
			endpoint = e.String()
		}
		t.Rows = append(t.Rows, []string{
			peer.Name, strings.Join(peer.Spec.AllowedIPs, ","), endpoint, ready, why, handshake, expires, render.Age(now.Sub(peer.CreationTimestamp.Time)),
		})
	}
	return t
}

func peerRemove(p *program, o *options) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Aliases: []string{"remove", "delete"}, Short: "Remove a Peer", Args: takes("NAME"),
		ValidArgsFunction: p.completePeers(o),
		Long:              "Removes a Peer. Its access and its running connections end within moments.",
		Example:           "  kgctl peer rm laptop",
		RunE: func(c *cobra.Command, args []string) error {
			config, err := clusterConfig(o)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), loadTimeout)
			defer cancel()
			if err := cluster.DeletePeer(ctx, config, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.err, "kgctl: Peer %s is removed\n", args[0])
			return err
		},
	}
}
