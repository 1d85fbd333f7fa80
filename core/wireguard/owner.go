package wireguard

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// process is somebody who has what we need.
type process struct {
	pid  int
	name string // as in /proc/PID/comm
}

func (p *process) self() bool { return p.pid == os.Getpid() }

func (p *process) String() string {
	if p.pid == 0 {
		// SO_PEERCRED and /proc show nothing of other pid namespaces.
		return "a process that is not visible from here (another pid namespace)"
	}
	return fmt.Sprintf("process %s (pid %d)", p.name, p.pid)
}

func processOf(pid int) *process {
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return &process{pid: pid, name: "unknown"}
	}
	return &process{pid: pid, name: strings.TrimSpace(string(comm))}
}

// servedBy returns the process that answers the control socket of a userspace
// device of that name; nil: none does.
func servedBy(name string) (*process, error) {
	c, err := net.Dial("unix", socketPath(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil // none, or the leavings of a process that died
	}
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", socketPath(name), err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		peer, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, sockErr); err != nil {
		return nil, fmt.Errorf("control socket %s: who serves it: %w", socketPath(name), err)
	}
	if peer.Pid == 0 {
		return &process{}, nil
	}
	return processOf(int(peer.Pid)), nil
}

// tunOwner says who holds the TUN or TAP interface of that name in this
// network namespace.
func tunOwner(name string) string {
	mine, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "a process that cannot be found: " + err.Error()
	}
	var owner *process
	eachProcess(func(pid int) bool {
		// Other namespaces have interfaces of the same name.
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil || ns != mine {
			return true
		}
		for _, tun := range tunsOf(pid) {
			if tun == name {
				owner = processOf(pid)
				return false
			}
		}
		return true
	})
	if owner == nil {
		return "nobody visible: a TUN interface that a process outside this pid namespace holds, or a persistent one"
	}
	return owner.String()
}

// tunsOf lists the TUN and TAP interfaces that a process holds: the kernel
// writes their names into the fdinfo of /dev/net/tun ("iff:").
func tunsOf(pid int) []string {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil // gone, or not ours to look at
	}
	var tuns []string
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err != nil || !strings.HasSuffix(to, "/net/tun") {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(info)) {
			if iff, ok := strings.CutPrefix(line, "iff:"); ok {
				tuns = append(tuns, strings.TrimSpace(iff))
			}
		}
	}
	return tuns
}

// PortOwner says who listens on a UDP port, when that is not the WireGuard
// device of the given name; "" when nobody does.
func PortOwner(port uint16, except string) (string, error) {
	inodes, err := udpSockets(port)
	if err != nil || len(inodes) == 0 {
		return "", err
	}
	// A device that is down names its port and has not opened it.
	if link, err := netlink.LinkByName(except); err == nil && link.Attrs().Flags&net.FlagUp != 0 {
		if d, err := deviceByName(except); err == nil && d.ListenPort == int(port) {
			return "", nil
		}
	}
	want := map[string]bool{}
	for _, inode := range inodes {
		want[fmt.Sprintf("socket:[%d]", inode)] = true
	}
	var owner *process
	eachProcess(func(pid int) bool {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			if to, _ := os.Readlink(filepath.Join(dir, fd.Name())); want[to] {
				owner = processOf(pid)
				return false
			}
		}
		return true
	})
	if owner != nil {
		if server, err := servedBy(except); err == nil && server != nil && server.pid == owner.pid {
			return "", nil // its device opened the port, though its link is down
		}
		return owner.String(), nil
	}
	// No process holds the kernel's own sockets.
	if link := kernelPort(port); link != "" {
		return link, nil
	}
	return (&process{}).String(), nil
}

// kernelPort names the link whose kernel socket has the port; "" when
// there is none.
func kernelPort(port uint16) string {
	links, err := netlink.LinkList()
	if err != nil {
		return ""
	}
	for _, link := range links {
		switch l := link.(type) {
		case *netlink.Vxlan:
			if l.Port == int(port) {
				return "VXLAN interface " + l.Name
			}
		case *netlink.Geneve:
			if l.Dport == port {
				return "Geneve interface " + l.Name
			}
		case *netlink.Wireguard:
			if d, err := deviceByName(l.Name); err == nil && d.ListenPort == int(port) {
				return "WireGuard interface " + l.Name
			}
		}
	}
	return ""
}

// udpSockets returns the inodes of the UDP sockets bound to a port in this
// network namespace.
func udpSockets(port uint16) ([]uint64, error) {
	var inodes []uint64
	for _, file := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		s := bufio.NewScanner(f)
		for s.Scan() {
			if i, ok := udpSocket(s.Text(), port); ok {
				inodes = append(inodes, i)
			}
		}
		err = s.Err()
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return inodes, nil
}

// udpSocket reads a line of /proc/net/udp: "sl local_address rem_address st
// tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...", the address as
// hex:port.
func udpSocket(line string, port uint16) (inode uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return 0, false
	}
	_, hex, _ := strings.Cut(f[1], ":")
	p, err := strconv.ParseUint(hex, 16, 16)
	if err != nil || uint16(p) != port {
		return 0, false
	}
	inode, err = strconv.ParseUint(f[9], 10, 64)
	return inode, err == nil
}

// eachProcess calls f for every process that /proc shows, until it says false.
func eachProcess(f func(pid int) bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && !f(pid) {
			return
		}
	}
}

// deviceByName asks a WireGuard device of either kind what it holds.
func deviceByName(name string) (*wgtypes.Device, error) {
	c, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("WireGuard control: %w", err)
	}
	defer c.Close()
	d, err := c.Device(name)
	if err != nil {
		return nil, fmt.Errorf("WireGuard device %s: %w", name, err)
	}
	return d, nil
}
