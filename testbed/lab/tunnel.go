package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// StartTunnel gives the machine a WireGuard interface as an outsider has one,
// without the agent: plain wireguard-go. What it holds is configured with wg
// and ip.
func (m *Machine) StartTunnel(ctx context.Context, iface string) error {
	daemon := "tunnel-" + iface
	if err := m.startDaemon(ctx, daemon, m.lab.path("bin", "kilolab"), "tunnel", iface); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if poll(wait, 20*time.Millisecond, func() bool {
		_, err := m.readFile(controlSocket(iface))
		// It is there and no file to read.
		return err != nil && !errors.Is(err, os.ErrNotExist)
	}) != nil {
		return fmt.Errorf("%s: no WireGuard interface %s; its log ends:\n%s", m.Name, iface, logTail(m.LogFile(daemon), 5))
	}
	return nil
}

func controlSocket(iface string) string {
	return filepath.Join("/run/wireguard", iface+".sock")
}

// Tunnel is the process of a WireGuard interface: it serves it, and its control
// socket, until ctx ends.
func Tunnel(ctx context.Context, iface string) error {
	t, err := tun.CreateTUN(iface, device.DefaultMTU)
	if err != nil {
		return fmt.Errorf("interface %s: %w", iface, err)
	}
	say := func(format string, args ...any) { slog.Info(fmt.Sprintf(format, args...)) }
	d := device.NewDevice(t, conn.NewDefaultBind(), &device.Logger{Verbosef: say, Errorf: say})
	defer d.Close()
	file, err := ipc.UAPIOpen(iface)
	if err != nil {
		return fmt.Errorf("interface %s: its control socket: %w", iface, err)
	}
	control, err := ipc.UAPIListen(iface, file)
	if err != nil {
		return fmt.Errorf("interface %s: its control socket: %w", iface, err)
	}
	context.AfterFunc(ctx, func() { control.Close() })
	for {
		c, err := control.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("interface %s: its control socket: %w", iface, err)
		}
		go d.IpcHandle(c)
	}
}
