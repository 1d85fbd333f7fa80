package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What holds namespaces open.
const holder = "holder"

// holdNetwork makes a bare network namespace: a router, or the internet.
func (l *Lab) holdNetwork(ctx context.Context, name string) (int, error) {
	pid, err := process{
		group:   l.group(name, holder),
		argv:    []string{"/usr/bin/sleep", "infinity"},
		title:   "kilolab/" + l.Name + "/" + name,
		log:     l.logFile(name, holder),
		unshare: unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWNS,
	}.start(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: make its namespaces: %w", name, err)
	}
	// A dumb switch: frames that it bridges must not meet its IP filter, and
	// nobody speaks IPv6 to it.
	_, err = l.runAt(ctx, name, pid, `
		mount --make-rprivate /
		hostname "$1"
		ip link set lo up
		for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ -e "$f" ] && echo 0 >"$f"; done
		for c in all default; do echo 1 >/proc/sys/net/ipv6/conf/$c/disable_ipv6; done
		echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
		echo 0 >/proc/sys/net/ipv4/conf/default/rp_filter
	`, name)
	return pid, err
}

// holdMachine makes a node: a network of its own, and a view of the file
// system in which /run is empty (as after boot) and /etc and /var/lib are the
// machine's, copied on write to its disk, which survives a power-off.
func (l *Lab) holdMachine(ctx context.Context, n *Node) error {
	disk := l.disk(n.Name)
	for _, dir := range []string{"etc", "etc.work", "lib", "lib.work"} {
		if err := os.MkdirAll(filepath.Join(disk, dir), 0o755); err != nil {
			return err
		}
	}
	// Sandboxes do not survive a reboot, and with them go their addresses.
	if err := os.RemoveAll(filepath.Join(disk, "lib", "cni")); err != nil {
		return err
	}
	pid, err := process{
		group:   l.group(n.Name, holder),
		argv:    []string{"/usr/bin/sleep", "infinity"},
		title:   "kilolab/" + l.Name + "/" + n.Name,
		log:     l.logFile(n.Name, holder),
		unshare: unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWNS,
	}.start(ctx)
	if err != nil {
		return fmt.Errorf("node %s: make its namespaces: %w", n.Name, err)
	}
	// /run of one's own also gives every node its own /run/wireguard: the
	// control sockets of userspace devices are per file system, not per
	// network namespace. sysfs is mounted anew because it shows the devices of
	// the network namespace that mounts it.
	_, err = l.runAt(ctx, n.Name, pid, `
		name=$1 disk=$2 rpf=$3
		mount --make-rprivate /
		hostname "$name"
		mount -t tmpfs -o mode=755 tmpfs /run
		mkdir -p /run/lock /run/netns /run/cgroup
		mount -t overlay overlay -o "lowerdir=/etc,upperdir=$disk/etc,workdir=$disk/etc.work" /etc
		mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$disk/lib,workdir=$disk/lib.work" /var/lib
		mount --rbind /sys/fs/cgroup /run/cgroup
		mount -t sysfs sysfs /sys
		mount --rbind /run/cgroup /sys/fs/cgroup
		umount -l /run/cgroup
		rmdir /run/cgroup
		echo "$name" >/etc/hostname
		printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" >/etc/hosts
		echo "$rpf" >/proc/sys/net/ipv4/conf/all/rp_filter
		echo "$rpf" >/proc/sys/net/ipv4/conf/default/rp_filter
		echo 1 >/proc/sys/net/ipv4/ip_forward
		ip link set lo up
	`, n.Name, disk, l.Spec.RPFilter.sysctl())
	if err != nil {
		return fmt.Errorf("node %s: make its file system: %w", n.Name, err)
	}
	return nil
}

// runAt runs a shell script in the namespaces of a process; args are $1, $2 …
func (l *Lab) runAt(ctx context.Context, name string, pid int, script string, args ...string) (string, error) {
	argv := append(enterArgs(pid), "/bin/sh", "-euc", script, "sh")
	return run(ctx, l.group(name, "exec"), "", append(argv, args...)...)
}

// ip runs lines of `ip` commands in the network of a place, stopping at the
// first that fails.
func (l *Lab) ip(ctx context.Context, place string, lines ...string) error {
	pid, err := l.holderOf(place)
	if err != nil {
		return err
	}
	argv := append(enterNetArgs(pid), "/usr/sbin/ip", "-batch", "-")
	if _, err := run(ctx, l.group(place, "exec"), strings.Join(lines, "\n")+"\n", argv...); err != nil {
		return fmt.Errorf("%s: %w\nin:\n%s", place, err, strings.Join(lines, "\n"))
	}
	return nil
}

// nft loads a ruleset in the network of a place, in one transaction.
func (l *Lab) nft(ctx context.Context, place, ruleset string) error {
	pid, err := l.holderOf(place)
	if err != nil {
		return err
	}
	argv := append(enterNetArgs(pid), "/usr/sbin/nft", "-f", "-")
	if _, err := run(ctx, l.group(place, "exec"), ruleset, argv...); err != nil {
		return fmt.Errorf("%s: %w\nin:\n%s", place, err, ruleset)
	}
	return nil
}

// holderOf is the process that holds a place's namespaces.
func (l *Lab) holderOf(place string) (int, error) {
	if pid := l.group(place, holder).pid(); pid != 0 {
		return pid, nil
	}
	return 0, fmt.Errorf("%s is powered off, or not part of lab %s", place, l.Name)
}

func netnsPath(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/ns/net" }
