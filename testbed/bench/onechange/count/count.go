//go:build linux

// Package count counts the netlink messages of a network namespace with the
// kernel's own tap, an nlmon interface.
package count

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Count is what one change cost.
type Count struct {
	Role     string         `json:"role"`
	What     string         `json:"what"`
	Changes  map[string]int `json:"changes"` // state.Changes by type
	Messages Messages       `json:"messages"`
}

// Messages are those to the kernel, by what they are about.
type Messages struct {
	Reads     int `json:"reads"`     // questions, whatever about
	Routes    int `json:"routes"`    // routes, rules, links, addresses written
	WireGuard int `json:"wireGuard"` // WireGuard devices written
	// NFTables are messages inside transactions, of which there are
	// Transactions; Bytes is their size.
	NFTables     int `json:"nftables"`
	Transactions int `json:"transactions"`
	Bytes        int `json:"bytes"`
}

// Tapped is a tap that is open.
type Tapped struct{ fd int }

// Tap listens on an nlmon interface that is up.
func Tap(name string) (*Tapped, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	t := &Tapped{fd}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}),
	)
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	return t, nil
}

// Close ends it.
func (t *Tapped) Close() error { return unix.Close(t.fd) }

// Reset forgets what was heard so far.
func (t *Tapped) Reset() error {
	_, err := t.Count()
	return err
}

// Count returns what was heard since the last call.
func (t *Tapped) Count() (Messages, error) {
	var m Messages
	buffer := make([]byte, 4<<20)
	for quiet := false; ; {
		n, from, err := unix.Recvfrom(t.fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN) && quiet:
			return m, t.lost()
		case errors.Is(err, unix.EAGAIN):
			time.Sleep(50 * time.Millisecond)
			quiet = true
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return m, err
		}
		if sll, ok := from.(*unix.SockaddrLinklayer); ok {
			protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, sll.Protocol))
			m.add(int(protocol), buffer[:n])
		}
	}
}

// lost fails where the tap could not keep up.
func (t *Tapped) lost() error {
	stats, err := unix.GetsockoptTpacketStats(t.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil && stats.Drops > 0 {
		err = fmt.Errorf("%d messages were not seen", stats.Drops)
	}
	return err
}

// add counts those messages of a datagram that go to the kernel: requests. The
// tap shows answers and news too, and does not tell the direction.
func (m *Messages) add(protocol int, data []byte) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		kind, flags := binary.NativeEndian.Uint16(data[4:]), binary.NativeEndian.Uint16(data[6:])
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return
		}
		body := data[unix.SizeofNlMsghdr:length]
		data = data[min((length+3)&^3, len(data)):]
		if flags&unix.NLM_F_REQUEST == 0 {
			continue
		}
		switch protocol {
		case unix.NETLINK_ROUTE:
			// RTM_* come in fours: new, delete, get, set.
			if flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP || kind%4 == 2 {
				m.Reads++
			} else {
				m.Routes++
			}
		case unix.NETLINK_GENERIC:
			// The command is the first byte: of WireGuard 0 reads and 1
			// writes. Questions to the controller are reads, too.
			if kind != unix.GENL_ID_CTRL && len(body) > 0 && body[0] == 1 {
				m.WireGuard++
			} else {
				m.Reads++
			}
		case unix.NETLINK_NETFILTER:
			const begin, end, subsystem = 0x10, 0x11, 10 // linux/netfilter/nfnetlink.h
			switch command := kind & 0xff; {
			case kind == begin:
				m.Transactions++
			case kind == end:
			case kind>>8 == subsystem && reads(command):
				m.Reads++
			case kind>>8 == subsystem:
				m.NFTables++
				m.Bytes += length
			}
		}
	}
}

// reads tells whether a command of nf_tables (linux/netfilter/nf_tables.h) is a
// question.
func reads(command uint16) bool {
	switch command {
	case unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE, unix.NFT_MSG_GETSET,
		unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_GETGEN, unix.NFT_MSG_GETOBJ:
		return true
	}
	return false
}
