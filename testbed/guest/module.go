package guest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wantedModules are loaded with all that they depend on, and every kind of
// expression that nftables has (nft_*): the guest has no modprobe, so what the
// kernel would ask for by itself must be there.
func wantedModules() []string {
	return []string{
		"wireguard", "tun", "veth", "bridge", "vxlan", "dummy", "virtio_net", "virtio_pci",
		"udp_diag", "nlmon", "nf_tables", "nf_conntrack_netlink", "nf_log_syslog",
		"iptable_filter", "ip6table_filter", "xt_comment", "xt_conntrack", "xt_limit", "xt_mark", "xt_tcpudp",
	}
}

// modules returns the files of the wanted modules, of more, and of those that they depend
// on, in an order in which they can be loaded.
func (k *Kernel) modules(more []string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(k.Modules, func(path string, d fs.DirEntry, err error) error {
		if name, ok := moduleName(path); ok && err == nil {
			files[name] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.Modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(builtin)) {
		if name, ok := moduleName(strings.TrimSpace(line)); ok {
			files[name] = "" // nothing to load
		}
	}
	var order []string
	seen := map[string]bool{}
	var add func(name, why string) error
	add = func(name, why string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		file, ok := files[name]
		if !ok {
			return fmt.Errorf("kernel %s has no module %s, wanted %s", k.Version, name, why)
		}
		if file == "" {
			return nil
		}
		needs, err := dependencies(file)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n, "by "+name); err != nil {
				return err
			}
		}
		order = append(order, file)
		return nil
	}
	wanted := append(wantedModules(), more...)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(name, "nft_") {
			wanted = append(wanted, name)
		}
	}
	for _, name := range wanted {
		if err := add(name, "for the tests"); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is the name by which others depend on the module in a file.
func moduleName(path string) (string, bool) {
	name, ok := strings.CutSuffix(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_"), ok
}

// dependencies reads which modules a module needs: what depmod would write into
// modules.dep, which Debian makes at installation only.
func dependencies(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("module %s says nothing about itself: it has no section .modinfo", file)
	}
	text, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	for _, field := range bytes.Split(text, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			names := strings.Split(list, ",")
			for i := range names {
				names[i] = strings.ReplaceAll(names[i], "-", "_")
			}
			return slices.Clip(names), nil
		}
	}
	return nil, nil
}
