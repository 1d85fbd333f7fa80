package join

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// What SOCKS5 (RFC 1928) calls what we use of it.
const (
	socksVersion = 5
	noAuth       = 0
	noMethod     = 0xff
	connect      = 1
	byIPv4       = 1
	byName       = 3
	byIPv6       = 4

	succeeded       = 0
	notAllowed      = 2
	hostUnreachable = 4
	notSupported    = 7
	badAddressType  = 8
)

const (
	greetingTimeout = 10 * time.Second
	dialTimeout     = 30 * time.Second
)

// Dialer connects to a host, an address or a name, by TCP.
type Dialer func(ctx context.Context, host string, port uint16) (net.Conn, error)

// ServeSOCKS is a SOCKS5 proxy on l that connects with dial, until ctx ends. It
// asks nobody who he is: whoever reaches l reaches what dial does.
func ServeSOCKS(ctx context.Context, l net.Listener, dial Dialer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("SOCKS5 proxy: %w", err)
		}
		wg.Go(func() {
			defer c.Close()
			ends := context.AfterFunc(ctx, func() { c.Close() })
			defer ends()
			// What goes wrong is told to the client, as far as the protocol can.
			_ = serveOne(ctx, c, dial)
		})
	}
}

func serveOne(ctx context.Context, c net.Conn, dial Dialer) error {
	_ = c.SetDeadline(time.Now().Add(greetingTimeout))
	host, port, err := greet(c)
	if err != nil {
		return err
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	to, err := dial(dialing, host, port)
	cancel()
	_ = c.SetDeadline(time.Time{})
	if err != nil {
		code := byte(hostUnreachable)
		if errors.Is(err, ErrNotInMesh) {
			code = notAllowed
		}
		return errors.Join(err, reply(c, code))
	}
	defer to.Close()
	if err := reply(c, succeeded); err != nil {
		return err
	}
	ends := context.AfterFunc(ctx, func() { to.Close() })
	defer ends()
	done := make(chan struct{}, 2)
	carry := func(from, into net.Conn) {
		_, _ = io.Copy(into, from)
		if half, ok := into.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		} else {
			_ = into.Close()
		}
		done <- struct{}{}
	}
	go carry(c, to)
	go carry(to, c)
	<-done
	<-done
	return nil
}

// greet reads what the client wants.
func greet(c io.ReadWriter) (host string, port uint16, err error) {
	var head [2]byte // version, number of methods
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return "", 0, err
	}
	if head[0] != socksVersion {
		head[1] = 0 // the rest is another protocol's
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(c, methods); err != nil {
		return "", 0, err
	}
	if !slices.Contains(methods, noAuth) {
		_, _ = c.Write([]byte{socksVersion, noMethod})
		return "", 0, errors.New("not SOCKS5 without authentication")
	}
	if _, err := c.Write([]byte{socksVersion, noAuth}); err != nil {
		return "", 0, err
	}
	var request [4]byte // version, command, reserved, type of address
	if _, err := io.ReadFull(c, request[:]); err != nil {
		return "", 0, err
	}
	if request[0] != socksVersion {
		return "", 0, fmt.Errorf("a request of SOCKS version %d after a greeting of version %d", request[0], socksVersion)
	}
	if request[1] != connect {
		return "", 0, errors.Join(fmt.Errorf("command %d is not supported", request[1]), reply(c, notSupported))
	}
	var size int
	switch request[3] {
	case byIPv4:
		size = 4
	case byIPv6:
		size = 16
	case byName:
		var n [1]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			return "", 0, err
		}
		size = int(n[0])
	default:
		return "", 0, errors.Join(fmt.Errorf("address of type %d", request[3]), reply(c, badAddressType))
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(c, rest); err != nil {
		return "", 0, err
	}
	host = string(rest[:size])
	if request[3] != byName {
		a, _ := netip.AddrFromSlice(rest[:size]) // 4 or 16 bytes are one
		host = a.String()
	}
	return host, binary.BigEndian.Uint16(rest[size:]), nil
}

// reply tells the client how it went. The address that it carries means nothing to
// clients that connect.
func reply(c io.Writer, code byte) error {
	_, err := c.Write([]byte{socksVersion, code, 0, byIPv4, 0, 0, 0, 0, 0, 0})
	return err
}
