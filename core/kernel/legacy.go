package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kilo-overlay/kilo/core/firewall"
)

// iptables-legacy keeps a table as one piece of memory, which is read with one
// socket option and replaced as a whole with another (linux/netfilter_ipv4/
// ip_tables.h, linux/netfilter/x_tables.h). We speak to it ourselves, since an
// image without a shell has no iptables either.

// legacyFamily is what differs between iptables and ip6tables.
type legacyFamily struct {
	family firewall.Family
	domain int
	level  int
	// names lists the tables that are there; asking for one that is not would
	// make it.
	names string
	// A rule: struct ipt_entry or ip6t_entry. Offsets in bytes.
	targetOffset, nextOffset, comeFrom, counters, size int
}

var legacyFamilies = []legacyFamily{
	{firewall.IPv4, unix.AF_INET, unix.SOL_IP, "/proc/net/ip_tables_names", 88, 90, 92, 96, 112},
	{firewall.IPv6, unix.AF_INET6, unix.SOL_IPV6, "/proc/net/ip6_tables_names", 140, 142, 144, 152, 168},
}

const (
	legacyTable = "filter"
	legacyChain = "FORWARD"
	hookForward = 2 // NF_INET_FORWARD

	// The socket options, the same numbers for both families.
	optGetInfo     = 64
	optGetEntries  = 65
	optReplace     = 64
	optAddCounters = 65

	// struct ipt_getinfo, ipt_get_entries, ipt_replace, xt_counters_info.
	nameSize       = 32
	infoSize       = 84
	entriesHeader  = 40
	replaceHeader  = 96
	countersHeader = 40
	counterSize    = 16
	hookCount      = 5

	// struct xt_entry_match and xt_entry_target: size, name, revision.
	extHeader   = 32
	extNameSize = 29
	// Verdicts of a standard target: -NF_DROP - 1, -NF_ACCEPT - 1. What is not
	// negative is where in the table to go on.
	verdictDrop, verdictAccept = -1, -2

	markRevision = 1 // struct xt_mark_mtinfo1: mark, mask, invert
	commentSize  = 256

	// xtablesLock is held by whoever changes a table, iptables itself included.
	xtablesLock     = "/run/xtables.lock"
	xtablesPatience = 5 * time.Second
)

// errWordSize: the structures above are laid out for 64 bits.
var errWordSize = errors.New("iptables-legacy is not read on machines of less than 64 bits")

// legacyForwardChains finds FORWARD of the filter tables that are there.
func legacyForwardChains() ([]firewall.Chain, error) {
	var out []firewall.Chain
	var errs []error
	for i := range legacyFamilies {
		f := &legacyFamilies[i]
		t, err := f.read()
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", f.id(), err))
			continue
		}
		if t == nil {
			continue
		}
		c := firewall.Chain{ID: f.id(), Drops: t.policy() == verdictDrop}
		wanted := f.accept()
		for _, e := range t.forward() {
			if f.ours(e) {
				c.Accepts++
				c.Intact = bytes.Equal(f.withoutCounters(e), wanted)
			}
		}
		c.Intact = c.Intact && c.Accepts == 1
		out = append(out, c)
	}
	return out, errors.Join(errs...)
}

func (f *legacyFamily) id() firewall.ID {
	return firewall.ID{Backend: firewall.Legacy, Family: f.family, Table: legacyTable, Chain: legacyChain}
}

// changeLegacy replaces what is ours in FORWARD. The table is read and written
// under the lock that iptables takes, and counters are kept.
func changeLegacy(ctx context.Context, change firewall.Change) error {
	i := slices.IndexFunc(legacyFamilies, func(f legacyFamily) bool { return f.id() == change.Chain })
	if i < 0 {
		return errors.New("there is no such table of iptables-legacy")
	}
	f := &legacyFamilies[i]
	unlock, err := lockXtables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	t, err := f.read()
	switch {
	case err != nil:
		return err
	case t == nil && change.Accept:
		return errors.New("the table is gone")
	case t == nil:
		return nil
	}
	var insert []byte
	if change.Accept {
		insert = f.accept()
	}
	if err := f.replace(t, t.edit(f.ours, insert)); err != nil {
		return err
	}
	after, err := f.read()
	if err != nil || after == nil {
		return fmt.Errorf("verify: %w", cmpErr(err, "the table is gone"))
	}
	ours := 0
	for _, e := range after.forward() {
		if f.ours(e) {
			ours++
		}
	}
	if first := after.forward(); change.Accept && (ours != 1 || !bytes.Equal(f.withoutCounters(first[0]), insert)) || !change.Accept && ours > 0 {
		return fmt.Errorf("somebody else changes the table at the same time: %d rules of ours in it", ours)
	}
	return nil
}

func cmpErr(err error, otherwise string) error {
	if err != nil {
		return err
	}
	return errors.New(otherwise)
}

// lockXtables takes the lock that iptables takes, as iptables -w does.
func lockXtables(ctx context.Context) (unlock func(), err error) {
	file, err := os.OpenFile(xtablesLock, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the lock of iptables: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, xtablesPatience)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", xtablesLock, err)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("%s is held by another program: %w", xtablesLock, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// read returns the filter table, nil where there is none.
func (f *legacyFamily) read() (*legacyRules, error) {
	names, err := os.ReadFile(f.names)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(strings.Fields(string(names)), legacyTable) {
		return nil, nil
	}
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return nil, errWordSize
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for range 10 {
		info := make([]byte, infoSize)
		copy(info, legacyTable)
		if err := getsockopt(fd, f.level, optGetInfo, info); err != nil {
			return nil, fmt.Errorf("its size: %w", err)
		}
		size := native.Uint32(info[80:])
		all := make([]byte, entriesHeader+int(size))
		copy(all, legacyTable)
		native.PutUint32(all[nameSize:], size)
		err := getsockopt(fd, f.level, optGetEntries, all)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) {
			continue // it has grown or shrunk meanwhile
		}
		if err != nil {
			return nil, err
		}
		t := &legacyRules{family: f, hooks: native.Uint32(info[32:]), entries: all[entriesHeader:]}
		for h := range hookCount {
			t.entry[h] = native.Uint32(info[36+4*h:])
			t.underflow[h] = native.Uint32(info[56+4*h:])
		}
		return t, t.check()
	}
	return nil, errors.New("it changes all the time")
}

var native = binary.NativeEndian

// replace gives the kernel next in the place of before. It refuses where the
// table has another number of entries meanwhile (EAGAIN).
func (f *legacyFamily) replace(before, next *legacyRules) error {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	old := make([]byte, before.count()*counterSize)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&old[0])

	b := make([]byte, replaceHeader, replaceHeader+len(next.entries))
	copy(b, legacyTable)
	native.PutUint32(b[32:], next.hooks)
	native.PutUint32(b[36:], uint32(next.count()))
	native.PutUint32(b[40:], uint32(len(next.entries)))
	for h := range hookCount {
		native.PutUint32(b[44+4*h:], next.entry[h])
		native.PutUint32(b[64+4*h:], next.underflow[h])
	}
	native.PutUint32(b[84:], uint32(before.count()))
	native.PutUint64(b[88:], uint64(uintptr(unsafe.Pointer(&old[0]))))
	b = append(b, next.entries...)
	if err := setsockopt(fd, f.level, optReplace, b); err != nil {
		return fmt.Errorf("replace the table: %w", err)
	}
	return f.addCounters(fd, before, next, old)
}

// addCounters gives rules that stayed what they had counted: the kernel starts
// anew at each replacement and hands the old counters out.
func (f *legacyFamily) addCounters(fd int, before, next *legacyRules, old []byte) error {
	b := make([]byte, countersHeader, countersHeader+next.count()*counterSize)
	copy(b, legacyTable)
	native.PutUint32(b[nameSize:], uint32(next.count()))
	var kept [][]byte
	n := 0
	before.each(func(at uint32, e []byte) {
		if !before.inForward(at) || !f.ours(e) {
			kept = append(kept, old[n*counterSize:(n+1)*counterSize])
		}
		n++
	})
	next.each(func(at uint32, e []byte) {
		if next.inForward(at) && f.ours(e) || len(kept) == 0 {
			b = append(b, make([]byte, counterSize)...)
			return
		}
		b = append(b, kept[0]...)
		kept = kept[1:]
	})
	if err := setsockopt(fd, f.level, optAddCounters, b); err != nil {
		return fmt.Errorf("restore its counters: %w", err)
	}
	return nil
}

func getsockopt(fd, level, option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func setsockopt(fd, level, option int, b []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
