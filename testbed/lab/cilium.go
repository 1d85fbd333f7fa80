package lab

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// Cilium is how it is set up.
type Cilium struct {
	Mode        CiliumMode  `json:"mode,omitempty"`        // "": tunnel
	HostRouting HostRouting `json:"hostRouting,omitempty"` // "": legacy
	// KubeProxyReplacement leaves Services to Cilium and kube-proxy out. BPF
	// host routing includes it.
	KubeProxyReplacement bool `json:"kubeProxyReplacement,omitempty"`
	// Devices are the interfaces that Cilium takes for the node's own, "": eth+;
	// CiliumFindsDevices leaves the choice to it.
	Devices string `json:"devices,omitempty"`
	// Flags are added to the command line of every agent; they may correct
	// those of the lab.
	Flags []string `json:"flags,omitempty"`
}

// CiliumFindsDevices is for Cilium.Devices: every device with an address that can
// be reached, found again as links come and go.
const CiliumFindsDevices = "detect"

// CiliumMode is how packets of pods travel between nodes.
type CiliumMode string

const (
	CiliumTunnel CiliumMode = "tunnel" // inside VXLAN
	CiliumNative CiliumMode = "native" // as they are, by routes of one segment
)

// HostRouting is how Cilium brings packets through a node.
type HostRouting string

const (
	HostRoutingLegacy HostRouting = "legacy" // by the kernel's routes and iptables
	HostRoutingBPF    HostRouting = "bpf"    // past them
)

func (s *Spec) completeCilium() {
	setDefault(&s.Cilium.Mode, CiliumTunnel)
	setDefault(&s.Cilium.HostRouting, HostRoutingLegacy)
	if s.Cilium.HostRouting == HostRoutingBPF {
		s.Cilium.KubeProxyReplacement = true
	}
	if s.CNI.hasCilium() && s.Cilium.KubeProxyReplacement {
		setDefault(&s.ProxyMode, ProxyOff)
	}
}

func (s *Spec) checkCilium(complain func(string, ...any)) {
	if s.CNI == CNIChained && s.Cilium.HostRouting == HostRoutingBPF {
		complain("host routing bpf: a chained Cilium does not route")
	}
	if m := s.Cilium.Mode; m != CiliumTunnel && m != CiliumNative {
		complain("cilium mode %q: want %s or %s", m, CiliumTunnel, CiliumNative)
	}
	if r := s.Cilium.HostRouting; r != HostRoutingLegacy && r != HostRoutingBPF {
		complain("host routing %q: want %s or %s", r, HostRoutingLegacy, HostRoutingBPF)
	}
	if s.CNI.hasCilium() && s.Cilium.KubeProxyReplacement && s.ProxyMode != ProxyOff {
		complain("kube-proxy mode %q: Cilium replaces it, leave it off", s.ProxyMode)
	}
}

// Where the agent keeps its things on a machine.
const (
	ciliumSocket  = "/run/cilium/cilium.sock"
	ciliumShell   = "/run/cilium/shell.sock"
	ciliumCgroup  = "/run/cilium/cgroupv2"
	ciliumCNIFile = "/etc/cni/net.d/05-cilium.conflist"
)

// ciliumStart is how long an agent may take until it serves: with others on two
// cores it compiles its programs first.
const ciliumStart = 5 * time.Minute

// startCilium starts the machine's agent and waits until it serves the CNI
// plugin.
func (l *Lab) startCilium(ctx context.Context, m *Machine) error {
	if err := l.prepareCilium(ctx, m); err != nil {
		return fmt.Errorf("node %s: make a place for Cilium: %w", m.Name, err)
	}
	if err := m.startCiliumAgent(ctx); err != nil {
		return err
	}
	return m.waitForDaemon(ctx, tools.CiliumAgent, ciliumStart, func() error {
		_, err := m.readFile(ciliumCNIFile)
		return err
	})
}

// prepareCilium gives the machine what the agent finds on one of its own: a file
// system for BPF objects, the root of the control groups, which is the machine's
// own group, so that programs there see its processes and no others, and the
// namespaces of its pods.
func (l *Lab) prepareCilium(ctx context.Context, m *Machine) error {
	pid, err := m.pid()
	if err != nil {
		return err
	}
	// The agent's own address in the pod network would be a random one of the
	// node's, and with Cilium for kube-proxy it is a constant in its programs.
	// An earlier agent's it takes over: let that be the last of the prefix.
	prefix, err := l.podPrefix(ctx, m)
	if err != nil {
		return err
	}
	own := lastHost(prefix).As4()
	header := fmt.Sprintf("#define IPV4_GATEWAY 0x%08x\n", binary.LittleEndian.Uint32(own[:]))
	if err := m.writeFile("/run/cilium/state/globals/node_config.h", header); err != nil {
		return err
	}
	_, err = l.runAt(ctx, m.Name, pid, `
		cgroup=$1 sources=$2 mount=$3
		mkdir -p "$mount" /var/lib/cilium
		mount -t bpf bpf /sys/fs/bpf
		mount --bind "$cgroup" "$mount"
		ln -s /run/netns /run/cilium/netns
		rm -rf /var/lib/cilium/bpf
		cp -r "$sources" /var/lib/cilium/bpf
		# Sysctls of all machines, which the agent would set as on its own.
		mount --bind /proc/sys/kernel /proc/sys/kernel
		mount -o remount,bind,ro /proc/sys/kernel
	`, string(m.group), l.tools[tools.CiliumBPF], ciliumCgroup)
	return err
}

func (m *Machine) startCiliumAgent(ctx context.Context) error {
	// What an earlier one left would pass for this one's.
	if _, err := m.Exec(ctx, "/bin/rm", "-f", ciliumCNIFile, ciliumSocket); err != nil {
		return err
	}
	clang, err := m.lab.writeClang()
	if err != nil {
		return err
	}
	env := []string{"K8S_NODE_NAME=" + m.Name, "PATH=" + clang + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	return m.startDaemonEnv(ctx, tools.CiliumAgent, env, m.lab.tools[tools.CiliumAgent], m.lab.ciliumFlags()...)
}

func (l *Lab) ciliumFlags() []string {
	flags := []string{
		"--k8s-kubeconfig-path=" + l.Kubeconfig("cilium"),
		"--ipam=kubernetes",
		"--identity-allocation-mode=crd", // no operator, no store of its own
		"--enable-ipv4=true",
		"--enable-ipv6=false",
		"--bpf-root=/sys/fs/bpf",
		"--cgroup-root=" + ciliumCgroup,
		"--force-device-detection=true",
		"--cni-exclusive=false",
		"--write-cni-conf-when-ready=" + ciliumCNIFile,
	}
	// Many agents share a machine: what no scenario needs is left out, and maps
	// are as small as they may be.
	for _, off := range []string{"hubble", "l7-proxy", "envoy-config", "health-checking", "endpoint-health-checking", "gops"} {
		flags = append(flags, "--enable-"+off+"=false")
	}
	flags = append(flags,
		"--preallocate-bpf-maps=false",
		"--bpf-map-dynamic-size-ratio=0",
		"--bpf-ct-global-tcp-max=8192",
		"--bpf-ct-global-any-max=4096",
		"--bpf-nat-global-max=8192",
		"--bpf-policy-map-max=1024",
		"--bpf-lb-map-max=1024",
	)
	switch {
	case l.Spec.CNI == CNIChained:
		flags = append(flags,
			"--cni-chaining-mode=generic-veth",
			"--cni-chaining-target="+l.Spec.CNI.network(),
			"--routing-mode=native",
			"--enable-ipv4-masquerade=false",
			"--enable-local-node-route=false",
		)
	case l.Spec.Cilium.Mode == CiliumTunnel:
		flags = append(flags, "--routing-mode=tunnel", "--tunnel-protocol=vxlan")
	default:
		flags = append(flags,
			"--routing-mode=native",
			"--ipv4-native-routing-cidr="+l.Spec.PodNetwork.String(),
			"--auto-direct-node-routes=true",
			// Without it the agent takes nodes of other segments for an error
			// and begins anew, again and again.
			"--direct-routing-skip-unreachable=true",
		)
	}
	bpf := l.Spec.Cilium.HostRouting == HostRoutingBPF
	flags = append(flags,
		"--kube-proxy-replacement="+strconv.FormatBool(l.Spec.Cilium.KubeProxyReplacement),
		"--enable-bpf-masquerade="+strconv.FormatBool(bpf),
		"--enable-host-legacy-routing="+strconv.FormatBool(!bpf),
	)
	if devices := cmp.Or(l.Spec.Cilium.Devices, "eth+"); devices != CiliumFindsDevices {
		flags = append(flags, "--devices="+devices)
	}
	return append(flags, l.Spec.Cilium.Flags...)
}

// RestartCilium ends the machine's Cilium agent by its own process id, starts it
// and waits until it serves and all its endpoints are ready again.
func (m *Machine) RestartCilium(ctx context.Context) error {
	// It winds up much; a kubelet gives it a minute.
	if err := m.stopDaemonWithin(ctx, tools.CiliumAgent, time.Minute); err != nil {
		return err
	}
	return m.StartCilium(ctx)
}

// StartCilium starts a Cilium agent that has ended, and waits as RestartCilium
// does.
func (m *Machine) StartCilium(ctx context.Context) error {
	if err := m.startCiliumAgent(ctx); err != nil {
		return err
	}
	return m.WaitForCilium(ctx)
}

// WaitForCilium waits until the machine's agent serves and every endpoint of it
// is ready. The error has what is not.
func (m *Machine) WaitForCilium(ctx context.Context) error {
	return m.waitForDaemon(ctx, tools.CiliumAgent, ciliumStart, func() error { return m.ciliumReady(ctx) })
}

// waitForCilium waits until all of Cilium works: what the agents say of
// themselves is true only a moment later, so pods are asked as well.
func (l *Lab) waitForCilium(ctx context.Context) error {
	if err := each(ctx, l.Nodes(), func(ctx context.Context, n *Machine) error {
		if !n.Alive() {
			return nil
		}
		return n.WaitForCilium(ctx)
	}); err != nil {
		return err
	}
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		m, err := reach(ctx, l.PodPlaces(), l.PodPlaces(), l.carriedByCilium)
		if err == nil && m.Passed() == len(m.Pairs) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s after its agents are ready Cilium does not carry what it should:\n%s", limit, m)
		}
	}
}

// carriedByCilium tells whether pods of two places reach each other without an
// agent of ours: in one location; in Cilium's native mode in one segment, whose
// network takes any address.
func (l *Lab) carriedByCilium(from, to *Place) bool {
	if from.Location != to.Location {
		return false
	}
	if l.Spec.CNI == CNIChained || l.Spec.Cilium.Mode == CiliumTunnel {
		return true
	}
	loc, a, _ := l.Spec.node(l.Pod(from.Name).Node)
	_, b, _ := l.Spec.node(l.Pod(to.Name).Node)
	return a == b || a.Subnet == b.Subnet && !loc.Cloud
}

// forgetCilium deletes what Cilium keeps about a node and its pods, as its
// operator and the garbage collector do.
func (l *Lab) forgetCilium(ctx context.Context, node string, pods []corev1.Pod) error {
	_, err := l.Kubectl(ctx, "delete", "ciliumnode", node, "--ignore-not-found")
	for _, p := range pods {
		_, gone := l.Kubectl(ctx, "delete", "ciliumendpoint", p.Name, "--namespace="+p.Namespace, "--ignore-not-found")
		err = errors.Join(err, gone)
	}
	return err
}

// podPrefix is the node's, as its object shows it.
func (l *Lab) podPrefix(ctx context.Context, m *Machine) (netip.Prefix, error) {
	client, err := l.Client("kubelet")
	if err != nil {
		return netip.Prefix{}, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(node.Spec.PodCIDR)
}

// checkCiliumNeeds tells what the machine lacks for Cilium.
func checkCiliumNeeds() error {
	var missing []string
	for program, pkg := range map[string]string{clangDir + "/clang": "clang-19", "/usr/sbin/ipset": "ipset"} {
		if _, err := os.Stat(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if missing != nil {
		slices.Sort(missing)
		return errors.New("for Cilium, install what is missing: apt-get install " + strings.Join(missing, " ") + " (or run testbed/setup.sh cilium)")
	}
	return nil
}
