package flannel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/core/adapter"
	"github.com/kilo-overlay/kilo/core/model"
)

// annotationGrace is how long after Flannel wrote subnet.env its annotations
// may take to arrive here through the API server. Flannel writes them first.
const annotationGrace = time.Minute

// Discover implements adapter.Adapter. What is not there yet, a file, a
// device, is an error that names it: Flannel takes its time after boot, and
// while it restarts its device may be gone for a moment.
func (a *Adapter) Discover(ctx context.Context) (adapter.Facts, error) {
	env, written, err := a.readSubnetFile()
	if err != nil {
		return adapter.Facts{}, err
	}
	rec, warnings, err := a.readRecord(written)
	if err != nil {
		return adapter.Facts{}, err
	}
	host, err := a.o.Kernel.Host(ctx)
	if err != nil {
		return adapter.Facts{}, fmt.Errorf("listing interfaces: %w", err)
	}
	main, err := a.o.Kernel.MainRoutes(ctx)
	if err != nil {
		return adapter.Facts{}, fmt.Errorf("listing routes of main: %w", err)
	}
	hops := nextHops(main, env)
	if rec.Backend == "" {
		rec.Backend = backendFromKernel(host, hops)
	}
	if rec.Backend == "" {
		return adapter.Facts{}, fmt.Errorf(
			"which backend flannel uses is not known yet: waiting for this Node's annotation %s (%s is not there, and the kernel shows no device or route of flannel's)",
			annotationBackend, strings.Join(a.o.NetConfFiles, " or "))
	}
	if err := supported(rec.Backend); err != nil {
		return adapter.Facts{}, err
	}
	device, more, err := findDevice(rec, env, host, hops)
	if err != nil {
		return adapter.Facts{}, err
	}
	for _, message := range more {
		warnings = append(warnings, a.warning("FlannelDevice", message))
	}
	return adapter.Facts{
		Unnumbered:        a.besideCilium(),
		CNI:               Name,
		Mode:              rec.Backend,
		PodPrefixes:       sortedPrefixes(env.Subnets),
		ClusterPrefixes:   sortedPrefixes(env.Networks),
		Device:            device.Name,
		DeviceMTU:         device.MTU,
		PodMTU:            env.MTU,
		PodMTUSetting:     podMTUSetting(rec.Backend),
		NextHops:          hops,
		ExcludeInterfaces: excludeInterfaces(host, env),
		Warnings:          warnings,
	}, nil
}

// besideCilium tells whether Cilium has run on this node since boot. While its
// agent is restarted, or not there yet to answer, that stays true.
func (a *Adapter) besideCilium() bool {
	if a.o.ChainedCilium == "" {
		return false
	}
	_, err := os.Stat(a.o.ChainedCilium)
	return err == nil
}

// podMTUSetting is where the MTU of pods is set. The vxlan backend has a number of
// its own, the MTU of its outer packets, and gives pods 50 less; the others take
// their interface's, and only Flannel's CNI plugin can be told another.
func podMTUSetting(backend string) adapter.Setting {
	if backend == "vxlan" {
		return adapter.Setting{Where: `"MTU" in the Backend of Flannel's net-conf.json`, Add: 50}
	}
	return adapter.Setting{Where: `"mtu" in "delegate" of Flannel's CNI configuration (cni-conf.json)`}
}

// readSubnetFile returns what subnet.env says, and when it was written.
func (a *Adapter) readSubnetFile() (subnetEnv, time.Time, error) {
	text, err := os.ReadFile(a.o.SubnetFile)
	if errors.Is(err, fs.ErrNotExist) {
		return subnetEnv{}, time.Time{}, fmt.Errorf("flannel is not up on this node yet: waiting for %s, which flanneld writes", a.o.SubnetFile)
	}
	if err != nil {
		return subnetEnv{}, time.Time{}, fmt.Errorf("reading what Flannel gave this node: %w", err)
	}
	env, err := parseSubnetEnv(string(text))
	if err != nil {
		return subnetEnv{}, time.Time{}, fmt.Errorf("%s: %w", a.o.SubnetFile, err)
	}
	var written time.Time
	if info, err := os.Stat(a.o.SubnetFile); err == nil {
		written = info.ModTime()
	}
	return env, written, nil
}

// readRecord returns what Flannel says about its backend. The annotations say
// what runs; net-conf.json says what was asked for, and is taken where the
// annotations are not known or leave something open. A record without a
// Backend means that neither is there.
func (a *Adapter) readRecord(written time.Time) (record, []model.Warning, error) {
	var warnings []model.Warning
	var r record
	if annotations := a.annotations(); annotations != nil {
		if !Managed(annotations) {
			missing := fmt.Sprintf("this Node lacks the annotations %s=\"true\" and %s", annotationManaged, annotationBackend)
			if time.Since(written) < annotationGrace {
				return record{}, nil, fmt.Errorf("waiting for flannel's record: %s", missing)
			}
			return record{}, nil, &adapter.Unsupported{
				What: "flannel that keeps its subnets in etcd",
				Do:   missing + "; run flanneld with --kube-subnet-mgr and its default --kube-annotation-prefix",
			}
		}
		var bad []string
		r, bad = parseAnnotations(annotations)
		for _, message := range bad {
			warnings = append(warnings, a.warning("BadAnnotation", message))
		}
		if r.Backend != backendVXLAN || r.HasVNI {
			return r, warnings, nil
		}
	}
	conf, file, err := a.readNetConf()
	switch {
	case err != nil:
		warnings = append(warnings, a.warning("FlannelNetConf", fmt.Sprintf("%s: %v; taking what the kernel shows", file, err)))
	case r.Backend == "":
		r = conf
	case r.Backend == conf.Backend:
		r.VNI, r.HasVNI = conf.VNI, conf.HasVNI
	}
	return r, warnings, nil
}

func (a *Adapter) annotations() map[string]string {
	if a.o.NodeAnnotations == nil {
		return nil
	}
	return a.o.NodeAnnotations()
}

// readNetConf returns the first net-conf.json that is there, and its name; a
// zero record where none is.
func (a *Adapter) readNetConf() (record, string, error) {
	for _, file := range a.o.NetConfFiles {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return record{}, file, err
		}
		r, err := parseNetConf(string(text))
		return r, file, err
	}
	return record{}, "", nil
}

// nextHops picks Flannel's routes to the pods of other nodes out of main: they
// lead into a pod network, through a gateway, and not to this node's own pods.
func nextHops(main []adapter.NextHop, env subnetEnv) []adapter.NextHop {
	var hops []adapter.NextHop
	for _, r := range main {
		if !r.Via.IsValid() || !within(r.Prefix, env.Networks) || within(r.Prefix, env.Subnets) {
			continue
		}
		hops = append(hops, r)
	}
	slices.SortStableFunc(hops, func(a, b adapter.NextHop) int { return a.Prefix.Compare(b.Prefix) })
	// Of several to one prefix the kernel takes the first.
	return slices.CompactFunc(hops, func(a, b adapter.NextHop) bool { return a.Prefix == b.Prefix })
}

// backendFromKernel tells a backend by what it leaves in the kernel, for a
// start without an API server; "" where that says nothing.
func backendFromKernel(host model.Host, hops []adapter.NextHop) string {
	for _, i := range host.Interfaces {
		switch {
		case i.Kind == "vxlan" && isVXLANDeviceName(i.Name):
			return backendVXLAN
		case i.Name == "flannel-wg" || i.Name == "flannel-wg-v6":
			return "wireguard"
		case i.Name == "flannel.ipip":
			return "ipip"
		case i.Name == "flannel0":
			return "udp"
		}
	}
	if len(hops) > 0 { // through no device of Flannel's
		return backendHostGW
	}
	return ""
}

// findDevice returns the interface through which other nodes' pods are
// reached; a zero one for host-gw while nothing shows which it is. The second
// result says what is wrong but hurts the other address family only.
func findDevice(rec record, env subnetEnv, host model.Host, hops []adapter.NextHop) (model.Interface, []string, error) {
	if rec.Backend == backendHostGW {
		return hostGWDevice(rec, host, hops), nil, nil
	}
	if !rec.HasVNI {
		vni, err := vniFromKernel(host, hops)
		if err != nil {
			return model.Interface{}, nil, err
		}
		rec.VNI = vni
	}
	var device model.Interface
	var warnings []string
	for _, v4 := range []bool{true, false} {
		if !slices.ContainsFunc(env.Subnets, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 }) {
			continue
		}
		name := vxlanDevice(rec.VNI, v4)
		i := slices.IndexFunc(host.Interfaces, func(i model.Interface) bool { return i.Name == name })
		var err error
		switch {
		case i < 0:
			err = fmt.Errorf("waiting for flannel's device %s (VNI %d): there is %s", name, rec.VNI, flannelDevices(host))
		case host.Interfaces[i].Kind != "vxlan":
			err = fmt.Errorf("waiting for flannel's device: %s is of kind %q, want vxlan", name, host.Interfaces[i].Kind)
		case !host.Interfaces[i].Up:
			err = fmt.Errorf("waiting for flannel's device %s: it is down", name)
		case device.Name == "":
			device = host.Interfaces[i]
		}
		if err != nil && device.Name == "" {
			return model.Interface{}, nil, err
		}
		if err != nil { // IPv4 works, IPv6 must not hurt it
			warnings = append(warnings, err.Error())
		}
	}
	return device, warnings, nil
}

// hostGWDevice returns the interface with the address that Flannel published,
// or else the one that its routes lead through.
func hostGWDevice(rec record, host model.Host, hops []adapter.NextHop) model.Interface {
	for _, i := range host.Interfaces {
		for _, p := range i.Addresses {
			if slices.Contains(rec.PublicIPs, p.Addr()) {
				return i
			}
		}
	}
	if len(hops) > 0 {
		for _, i := range host.Interfaces {
			if i.Name == hops[0].Device {
				return i
			}
		}
	}
	return model.Interface{}
}

// vniFromKernel returns the VNI of the one VXLAN device of Flannel's, or of
// the one in use where an earlier configuration left others.
func vniFromKernel(host model.Host, hops []adapter.NextHop) (uint32, error) {
	vnis := map[uint32]bool{}
	used := map[uint32]bool{}
	for _, i := range host.Interfaces {
		if i.Kind != "vxlan" || !isVXLANDeviceName(i.Name) {
			continue
		}
		_, number, _ := strings.Cut(i.Name, ".")
		var vni uint32
		if _, err := fmt.Sscanf(number, "%d", &vni); err != nil {
			continue
		}
		vnis[vni] = true
		if slices.ContainsFunc(hops, func(h adapter.NextHop) bool { return h.Device == i.Name }) {
			used[vni] = true
		}
	}
	if len(vnis) > 1 {
		vnis = used
	}
	if len(vnis) != 1 {
		return 0, fmt.Errorf("which VXLAN device flannel uses is not known yet: there is %s; waiting for this Node's annotation %s",
			flannelDevices(host), annotationData)
	}
	for vni := range vnis {
		return vni, nil
	}
	panic("unreachable")
}

// flannelDevices names the devices that look like Flannel's.
func flannelDevices(host model.Host) string {
	var names []string
	for _, i := range host.Interfaces {
		if strings.HasPrefix(i.Name, "flannel") {
			names = append(names, i.Name)
		}
	}
	if len(names) == 0 {
		return "no flannel device"
	}
	slices.Sort(names)
	return "only " + strings.Join(names, ", ")
}

// excludeInterfaces names what belongs to Flannel and its pods: its devices,
// and the pods' bridge under whatever name. FLANNEL_SUBNET is the bridge's
// address, and flannel.<VNI> has one of that prefix too.
func excludeInterfaces(host model.Host, env subnetEnv) []string {
	names := []string{"cni0", "flannel*"}
	for _, i := range host.Interfaces {
		if strings.HasPrefix(i.Name, "flannel") {
			continue
		}
		for _, p := range i.Addresses {
			if contains(env.Subnets, p.Addr()) {
				names = append(names, i.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *Adapter) warning(kind, message string) model.Warning {
	return model.Warning{Kind: kind, Object: "node/" + a.o.Node, Message: message}
}

// within tells whether p lies in one of the prefixes.
func within(p netip.Prefix, in []netip.Prefix) bool {
	return slices.ContainsFunc(in, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
}

// contains tells whether an address lies in one of the prefixes.
func contains(in []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(in, func(q netip.Prefix) bool { return q.Contains(a) })
}

func sortedPrefixes(ps []netip.Prefix) []netip.Prefix {
	ps = slices.Clone(ps)
	slices.SortFunc(ps, netip.Prefix.Compare)
	return slices.Compact(ps)
}
