package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/join"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
)

// connection is what connect is told.
type connection struct {
	newPeer
	iface, socks, domain string
	dns                  bool
}

func connect(p *program, o *options) *cobra.Command {
	var n connection
	c := &cobra.Command{
		Use: "connect [NAME]", Short: "Join the mesh from this machine, until interrupted", Args: cobra.MaximumNArgs(1),
		Long: `Makes keys, registers this machine as a Peer, makes a WireGuard interface with
addresses and routes, follows the mesh as it changes, and takes all of it away again
when it is interrupted. NAME is the Peer's, by default this machine's name.

With --socks5 it needs no rights and makes no interface: a network stack in this
process joins the mesh, and programs reach it through the SOCKS5 proxy, which
resolves the cluster's names. Interfaces are made on Linux; --socks5 works everywhere.`,
		Example: `  sudo kgctl connect --kubeconfig ~/.kube/config --dns
  kgctl connect --socks5 localhost:1080 &
  curl --socks5-hostname localhost:1080 http://my-service.default.svc.cluster.local`,
	}
	f := c.Flags()
	f.StringSliceVar(&n.allowedIPs, "allowed-ips", nil, "this machine's address in the mesh, and prefixes behind it (default the first free address of --pool)")
	f.StringVar(&n.pool, "pool", "10.5.0.0/24", "where addresses for Peers are taken from")
	f.Uint16Var(&n.keepalive, "persistent-keepalive", 25, "seconds between keepalives; 0 is off")
	f.DurationVar(&n.expires, "expires", 0, "end the Peer's access after this time, whatever becomes of this process; 0 does not")
	f.StringVar(&n.privateKey, "private-key", "", "file with the private key; made, for the owner alone, where it is not there (default a new key each time)")
	f.StringVar(&n.iface, "interface", "kilo0", "name of the interface")
	f.StringVar(&n.socks, "socks5", "", "serve a SOCKS5 proxy at this host:port, and make no interface")
	f.BoolVar(&n.dns, "dns", false, "have systemd-resolved look up the cluster's names in the cluster")
	f.StringVar(&n.domain, "cluster-domain", "cluster.local", "the cluster's domain, for --dns")
	c.RunE = func(c *cobra.Command, args []string) error {
		name, err := peerName(args)
		if err != nil {
			return err
		}
		if n.socks != "" && n.dns {
			return usagef("--dns is for an interface; the proxy looks names up by itself")
		}
		return p.connect(c.Context(), o, name, n)
	}
	return c
}

// peerName is what is said, or this machine's name as Kubernetes takes it.
func peerName(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("this machine has no name (%w): give the Peer one", err)
	}
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9.-]+`).ReplaceAllString(strings.ToLower(host), "-"), "-.")
	if name == "" {
		return "", usagef("this machine's name, %q, is none for a Peer: give one", host)
	}
	return name, nil
}

func (p *program) connect(ctx context.Context, o *options, name string, n connection) (err error) {
	config, err := clusterConfig(o)
	if err != nil {
		return err
	}
	s, private, _, err := p.register(ctx, o, name, n.newPeer)
	if err != nil {
		return err
	}
	defer func() {
		// The context may have ended: that is how most connections do.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		if failed := cluster.DeletePeer(ending, config, name); failed != nil {
			err = errors.Join(err, failed)
		}
	}()
	dns, dnsError := cluster.DNSAddress(ctx, config)
	if dnsError != nil && (n.dns || n.socks != "") {
		p.warn(fmt.Sprintf("names of the cluster are not looked up: %v", dnsError))
	}
	self := render.OutsideInterface(s, name)
	var addresses []netip.Addr
	for _, a := range self.Addresses {
		addresses = append(addresses, a.Addr())
	}
	if len(addresses) == 0 {
		return usagef("--allowed-ips=%s: one of them has to be this machine's own address, such as 10.5.0.1/32", strings.Join(n.allowedIPs, ","))
	}
	raw, err := base64.StdEncoding.DecodeString(private)
	if err != nil || len(raw) != model.KeyLen {
		return errors.New("the private key is none")
	}
	key := [model.KeyLen]byte(raw)

	group, within := errgroup.WithContext(ctx)
	var tunnel join.Tunnel
	if n.socks == "" {
		log := slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
		i, done, err := newInterface(ctx, n.iface, key, addresses, self.MTU, log)
		if err != nil {
			return err
		}
		tunnel = i
		if done != nil {
			group.Go(func() error {
				select {
				case <-done:
					return fmt.Errorf("interface %s was taken away", n.iface)
				case <-within.Done():
					return nil
				}
			})
		}
	} else {
		var servers []netip.Addr
		if dnsError == nil {
			servers = append(servers, dns)
		}
		stack, err := join.NewStack(key, addresses, servers, mtuOr(self.MTU))
		if err != nil {
			return err
		}
		tunnel = stack
		l, err := net.Listen("tcp", n.socks)
		if err != nil {
			return errors.Join(fmt.Errorf("--socks5=%s: %w", n.socks, err), stack.Close())
		}
		fmt.Fprintf(p.err, "kgctl: SOCKS5 proxy at %s\n", l.Addr())
		group.Go(func() error { return join.ServeSOCKS(within, l, stack.Dial) })
	}
	defer func() { err = errors.Join(err, tunnel.Close()) }()

	// What is known from the beginning serves at once; then changes are followed.
	if err := p.follow(within, tunnel, s, name, nil); err != nil {
		p.warn(err.Error())
	}
	if n.dns && dnsError == nil {
		if err := splitDNS(ctx, n.iface, dns, n.domain); err != nil {
			p.warn(err.Error())
		}
	}
	fmt.Fprintf(p.err, "kgctl: Peer %s is %v in the mesh; interrupt to leave\n", name, addresses)
	mesh := cluster.New(cluster.Config{
		REST: config.REST, TopologyLabel: config.TopologyLabel, WireGuardSubnets: config.WireGuardSubnets, Namespace: config.Namespace,
		Version: config.Version, Log: slog.New(slog.DiscardHandler),
	})
	group.Go(func() error { return mesh.Run(within) })
	group.Go(func() error {
		told := map[string]bool{}
		for {
			select {
			case <-within.Done():
				return nil
			case <-mesh.Changed():
			}
			s, _, complete := mesh.Snapshot()
			if !complete {
				continue
			}
			if err := p.follow(within, tunnel, s, name, told); err != nil {
				p.warn(err.Error())
			}
		}
	})
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// follow brings the tunnel to what the mesh is now. What the Peer cannot have is
// said once. One node that cannot be reached stops nobody.
func (p *program) follow(ctx context.Context, t join.Tunnel, s model.Snapshot, name string, told map[string]bool) error {
	c, err := render.OutsideConfig(s, name)
	if err != nil {
		return fmt.Errorf("%w: somebody removed it, or it is not accepted; see: kubectl get peer %s -o yaml", err, name)
	}
	for _, note := range c.Notes {
		if !told[note] && told != nil {
			told[note] = true
			p.warn(note)
		}
	}
	return t.Set(ctx, c.Peers)
}

// mtuOr is WireGuard's usual one where nobody says another.
func mtuOr(mtu int) int {
	if mtu == 0 {
		return 1420
	}
	return mtu
}

// waitForLink bounds a call of systemd-resolved's tool.
const waitForLink = 10 * time.Second
