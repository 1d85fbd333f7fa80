package wireguard

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// userspace is a wireguard-go device in this process.
//
// Its UDP sockets are opened by whatever thread serves the control socket, so
// all threads of the process must be in the network namespace of its TUN.
type userspace struct {
	name   string
	device *device.Device
	done   chan struct{}

	mu     sync.Mutex
	socket net.Listener // nil while it is being made anew
	closed bool
}

func startUserspace(o Options) (*userspace, error) {
	t, err := tun.CreateTUN(o.Interface, o.MTU)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV):
		return nil, fmt.Errorf("interface %s: this kernel has no WireGuard, and /dev/net/tun is missing for the userspace device: load the module wireguard or tun, or mount /dev/net/tun: %w", o.Interface, err)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("interface %s: make a TUN interface: %w: CAP_NET_ADMIN and access to /dev/net/tun are needed", o.Interface, err)
	case err != nil:
		return nil, fmt.Errorf("interface %s: make a TUN interface: %w", o.Interface, err)
	}
	// What CreateTUN sets up by default is the fast path: batches of packets
	// and segmentation offload in both directions.
	u := &userspace{
		name:   o.Interface,
		device: device.NewDevice(t, conn.NewDefaultBind(), logger(o.Log, o.Interface)),
		done:   make(chan struct{}),
	}
	link, err := netlink.LinkByName(o.Interface)
	if err == nil {
		err = mark(link)
	}
	if err == nil {
		err = u.listen()
	}
	if err != nil {
		u.device.Close()
		return nil, fmt.Errorf("interface %s: userspace device: %w", o.Interface, err)
	}
	go u.serve()
	go u.keepStaged(cmp.Or(o.stagedEvery, stagedEvery))
	go func() {
		<-u.device.Wait() // its interface may be deleted under it
		u.close()
		close(u.done)
	}()
	return u, nil
}

// listen opens the control socket, replacing the file of a process that died.
func (u *userspace) listen() error {
	file, err := ipc.UAPIOpen(u.name)
	if err != nil {
		return fmt.Errorf("control socket %s: %w", socketPath(u.name), err)
	}
	defer file.Close()
	l, err := ipc.UAPIListen(u.name, file)
	if err != nil {
		return fmt.Errorf("control socket %s: %w", socketPath(u.name), err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errors.Join(net.ErrClosed, l.Close())
	}
	u.socket = l
	return nil
}

// serve answers the control socket until the device is closed. A socket file
// that somebody removes is made again: the data path does not depend on it.
func (u *userspace) serve() {
	for {
		u.mu.Lock()
		l, closed := u.socket, u.closed
		u.mu.Unlock()
		if closed {
			return
		}
		if l == nil {
			if err := u.listen(); err != nil {
				time.Sleep(time.Second)
			}
			continue
		}
		c, err := l.Accept()
		if err == nil {
			go u.device.IpcHandle(c)
			continue
		}
		u.mu.Lock()
		if !u.closed {
			u.socket.Close()
			u.socket = nil
		}
		u.mu.Unlock()
	}
}

func (u *userspace) close() {
	u.mu.Lock()
	l, already := u.socket, u.closed
	u.closed, u.socket = true, nil
	u.mu.Unlock()
	if already {
		return
	}
	if l != nil {
		l.Close() // removes the socket file
	}
	u.device.Close()
}

// socketDirectory is where wgctrl and wg(8) look for control sockets.
const socketDirectory = "/var/run/wireguard"

func socketPath(name string) string { return filepath.Join(socketDirectory, name+".sock") }
