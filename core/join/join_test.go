package join

import (
	"context"
	"crypto/ecdh"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/netstack"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/render"
)

// keys are a private key and its public one.
func keys(t *testing.T, seed byte) (private [32]byte, public model.Key) {
	t.Helper()
	for i := range private {
		private[i] = seed
	}
	k, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		t.Fatal(err)
	}
	return private, model.Key(k.PublicKey().Bytes())
}

// farSide is a gateway with a web server behind it, which answers with the address
// that it sees. It returns what its party needs.
func farSide(t *testing.T, at netip.Addr, client model.Key) render.Peer {
	t.Helper()
	private, public := keys(t, 7)
	tun, n, err := netstack.CreateNetTUN([]netip.Addr{at}, nil, 1420)
	if err != nil {
		t.Fatal(err)
	}
	d := device.NewDevice(tun, conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(d.Close)
	err = d.IpcSet(fmt.Sprintf("private_key=%s\npublic_key=%s\nallowed_ip=10.5.0.1/32\n", hex.EncodeToString(private[:]), hex.EncodeToString(client[:])))
	if err == nil {
		err = d.Up()
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.ListenTCPAddrPort(netip.AddrPortFrom(at, 80))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s", r.RemoteAddr) })}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()

	said, err := d.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	var port uint16
	for line := range strings.Lines(said) {
		_, _ = fmt.Sscanf(line, "listen_port=%d", &port)
	}
	return render.Peer{
		Key: public, AllowedIPs: []netip.Prefix{netip.PrefixFrom(at, at.BitLen())},
		Endpoint: model.Endpoint{Addr: netip.MustParseAddr("127.0.0.1"), Port: port},
	}
}

// Without any rights, curl reaches the far side through the proxy, which is seen as
// the Peer; what nobody in the mesh has is refused, and what is gone is gone.
func TestStackBehindSOCKS(t *testing.T) {
	private, public := keys(t, 1)
	peer := farSide(t, netip.MustParseAddr("10.244.9.7"), public)
	s, err := NewStack(private, []netip.Addr{netip.MustParseAddr("10.5.0.1")}, nil, 1420)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(t.Context(), []render.Peer{peer}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeSOCKS(ctx, l, s.Dial) }()
	curl := func(url string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "curl", "--silent", "--show-error", "--max-time", "20", "--socks5-hostname", l.Addr().String(), url).CombinedOutput()
		return string(out), err
	}
	for range 2 {
		if out, err := curl("http://10.244.9.7/"); err != nil || !strings.HasPrefix(out, "hello 10.5.0.1:") {
			t.Fatalf("curl: %v: %s", err, out)
		}
	}
	if out, err := curl("http://10.244.9.8/"); err == nil || !strings.Contains(out, "(2)") {
		t.Errorf("to an address that nobody has: %v: %s; want SOCKS5's \"not allowed\" (2)", err, out)
	}
	if err := s.Set(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if out, err := curl("http://10.244.9.7/"); err == nil {
		t.Errorf("without the peer: %s", out)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("the proxy ends with %v", err)
	}
}

// Only what differs is said: a peer that stays is not touched, nor is its endpoint.
func TestChanges(t *testing.T) {
	p := func(id byte, endpoint string, allowed ...string) render.Peer {
		out := render.Peer{Key: model.Key{id}, Keepalive: 25 * time.Second}
		if endpoint != "" {
			at := netip.MustParseAddrPort(endpoint)
			out.Endpoint = model.Endpoint{Addr: at.Addr(), Port: at.Port()}
		}
		for _, a := range allowed {
			out.AllowedIPs = append(out.AllowedIPs, netip.MustParsePrefix(a))
		}
		return out
	}
	before := []render.Peer{p(1, "192.0.2.1:1", "10.0.0.1/32"), p(2, "192.0.2.2:1", "10.0.0.2/32"), p(3, "", "10.0.0.3/32")}
	after := []render.Peer{before[0], p(2, "192.0.2.2:1", "10.0.0.2/32", "10.0.1.0/24"), p(4, "192.0.2.4:1", "10.0.0.4/32")}
	key := func(id byte) string { return fmt.Sprintf("%02x%062x", id, 0) }
	want := "public_key=" + key(2) + "\npreshared_key=" + key(0) + "\npersistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.0.0.2/32\nallowed_ip=10.0.1.0/24\n" +
		"public_key=" + key(4) + "\npreshared_key=" + key(0) + "\nendpoint=192.0.2.4:1\npersistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.0.0.4/32\n" +
		"public_key=" + key(3) + "\nremove=true\n"
	if got := changes(before, after); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := changes(after, after); got != "" {
		t.Errorf("nothing differs, and it says\n%s", got)
	}
}

// What is no SOCKS5, or asks for what we do not do, is answered by the book.
func TestSOCKSRefusals(t *testing.T) {
	for what, c := range map[string]struct{ says, answer string }{
		"SOCKS4":              {"\x04\x01", "\x05\xff"},
		"with a password":     {"\x05\x01\x02", "\x05\xff"},
		"to listen":           {"\x05\x01\x00\x05\x02\x00\x01", "\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00"},
		"an odd address type": {"\x05\x01\x00\x05\x01\x00\x09", "\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00"},
	} {
		t.Run(what, func(t *testing.T) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				_ = serveOne(t.Context(), server, func(context.Context, string, uint16) (net.Conn, error) { return nil, ErrNotInMesh })
			}()
			go func() { _, _ = client.Write([]byte(c.says)) }()
			got := make([]byte, len(c.answer))
			_ = client.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.ReadFull(client, got); err != nil || string(got) != c.answer {
				t.Errorf("answer %x, %v; want %x", got, err, c.answer)
			}
		})
	}
}
