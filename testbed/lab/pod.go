package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// EchoPort is where every pod answers HTTP: /source with the caller's address,
// /name with the pod's name, /bytes?n=N with N bytes, /datagrams with the lengths
// of what came in over UDP at the same port, to which nobody answers.
const EchoPort = 8080

// Echo is the process of a pod: it serves EchoPort until it is killed.
func Echo(name string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/source", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host)
	})
	mux.HandleFunc("/name", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("n"))
		if err != nil || n < 0 {
			http.Error(w, "want /bytes?n=NUMBER", http.StatusBadRequest)
			return
		}
		w.Write(make([]byte, n))
	})
	udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", EchoPort))
	if err != nil {
		return err
	}
	var d datagrams
	mux.HandleFunc("/datagrams", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, d.String()) })
	go d.read(udp)
	return http.ListenAndServe(fmt.Sprintf(":%d", EchoPort), mux)
}

// datagrams are the lengths of those that came in, without headers.
type datagrams struct {
	mu      sync.Mutex
	lengths []int
}

func (d *datagrams) read(from net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := from.ReadFrom(buffer)
		if err != nil {
			return // closed: the process ends
		}
		d.mu.Lock()
		d.lengths = append(d.lengths, n)
		d.mu.Unlock()
	}
}

// String has a length a line.
func (d *datagrams) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, n := range d.lengths {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

// Datagrams are the lengths of what came in over UDP at the pod's EchoPort, in
// bytes without headers.
func (p *Pod) Datagrams(ctx context.Context) ([]int, error) {
	text, err := p.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/datagrams", EchoPort))
	if err != nil {
		return nil, err
	}
	var lengths []int
	for _, word := range strings.Fields(text) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%s: /datagrams said %q: %w", p.Name, text, err)
		}
		lengths = append(lengths, n)
	}
	return lengths, nil
}

// writeCNIConfig writes what Flannel's own CNI plugin would delegate to, from
// the subnet that flanneld announces.
func (l *Lab) writeCNIConfig(ctx context.Context, m *Machine) error {
	text, err := m.readFile(flannelSubnetFile)
	if err != nil {
		return err
	}
	env := map[string]string{}
	for _, line := range strings.Fields(text) {
		k, v, _ := strings.Cut(line, "=")
		env[k] = v
	}
	gateway, err := netip.ParsePrefix(env["FLANNEL_SUBNET"]) // 10.244.1.1/24
	if err != nil {
		return fmt.Errorf("node %s: %s: %w", m.Name, flannelSubnetFile, err)
	}
	return m.writeFile("/etc/cni/net.d/10-flannel.conflist", fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "cbr0",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "mtu": %s,
      "ipMasq": false,
      "isGateway": true,
      "isDefaultGateway": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "%s"}]],
        "routes": [{"dst": "%s"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, env["FLANNEL_MTU"], gateway.Masked(), l.Spec.PodNetwork))
}

// startPod makes a Pod object and what stands behind it: a namespace with a
// process, attached by the CNI plugins.
func (l *Lab) startPod(ctx context.Context, m *Machine, name string) error {
	p := l.podPlace(m, name)
	if err := l.createPodObject(ctx, p); err != nil {
		return err
	}
	pid, err := process{
		group:   p.group.sub(holder),
		argv:    []string{l.path("bin", "kilolab"), "echo", name},
		log:     l.logFile(m.Name, name),
		unshare: unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWNS,
	}.start(ctx)
	if err != nil {
		return fmt.Errorf("pod %s: %w", name, err)
	}
	if _, err := l.runAt(ctx, filepath.Join(m.Name, name), pid, `
		mount --make-rprivate /
		mount -t sysfs sysfs /sys
		hostname "$1"
		ip link set lo up
	`, name); err != nil {
		return fmt.Errorf("pod %s: %w", name, err)
	}
	// The namespace has a name on its node and nowhere else.
	ns := "/run/netns/" + name
	// Cilium's plugin waits 90 seconds for its agent, which has much to compile on
	// a busy machine; a kubelet tries again, and so does this, up to two times.
	out, err := m.Exec(ctx, "/bin/sh", "-euc", `
		touch "$1"
		mount --bind "$2" "$1"
		export CNI_PATH=$3 NETCONFPATH=/etc/cni/net.d
		export CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=$7;K8S_POD_NAME=$4"
		for again in yes yes no; do
			if said=$("$5" add "$6" "$1" 2>"$8"); then
				printf %s "$said"
				exit
			fi
			grep -q "Cilium API client timeout exceeded" "$8" && [ $again = yes ] || break
			"$5" del "$6" "$1" >/dev/null 2>&1 || true
		done
		cat "$8" >&2
		exit 1
	`, "sh", ns, netnsPath(pid), l.cniPath(), name, l.tools[tools.CNITool], l.Spec.CNI.network(), p.Namespace, "/run/cni-"+name)
	if err != nil {
		return fmt.Errorf("pod %s: attach it: %w", name, err)
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) == 0 {
		return fmt.Errorf("pod %s: cnitool printed no address: %v: %s", name, err, out)
	}
	p.Addr = result.IPs[0].Address.Addr()

	client, err := l.Client("kubelet")
	if err != nil {
		return err
	}
	object, err := client.CoreV1().Pods(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := patchPodStatus(ctx, client, object, m, p.Addr.String()); err != nil {
		return err
	}
	l.remember(p)
	return nil
}

// network is the name that the CNI gives its network in its configuration.
func (c CNI) network() string {
	if c == CNICilium {
		return "cilium"
	}
	return "cbr0"
}

// cniPath lists the directories of the CNI plugins.
func (l *Lab) cniPath() string {
	path := l.tools.CNIDir()
	if l.Spec.CNI.hasCilium() {
		path += ":" + filepath.Dir(l.tools[tools.CiliumCNI])
	}
	return path
}

func (l *Lab) podPlace(m *Machine, name string) *Pod {
	return &Pod{
		Place:     Place{Name: name, Location: m.Location, lab: l, group: m.group.sub(name)},
		Node:      m.Name,
		Namespace: cmp.Or(m.spec.PodNamespace, metav1.NamespaceDefault),
	}
}

// remember puts a pod among the lab's, in the order of the nodes.
func (l *Lab) remember(p *Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ordered []*Pod
	old := append([]*Pod{p}, l.pods...)
	seen := map[string]bool{}
	l.Spec.nodes(func(_ *Location, n *Node) {
		for _, o := range old {
			if o.Node == n.Name && !seen[o.Name] {
				seen[o.Name] = true
				ordered = append(ordered, o)
			}
		}
	})
	l.pods = ordered
}

func (l *Lab) restorePod(r podRecord) error {
	addr, err := netip.ParseAddr(r.Addr)
	if err != nil {
		return fmt.Errorf("%s: pod %s: %w", l.path("lab.json"), r.Name, err)
	}
	p := l.podPlace(l.Machine(r.Node), r.Name)
	p.Addr = addr
	l.pods = append(l.pods, p)
	return nil
}
