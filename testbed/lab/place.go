package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Place is where a command can run: a machine, a pod, a router, the internet.
type Place struct {
	Name     string
	Location string     // "" for the internet
	Addr     netip.Addr // by which others reach it; a node's is its InternalIP

	lab   *Lab
	group group // its own; the process that holds its namespaces is in group/holder
}

// Machine is a node, or an outsider's machine.
type Machine struct {
	Place
	Public netip.Addr // zero without a public leg

	loc  *Location
	spec *Node
}

// Pod is a pod of a node.
type Pod struct {
	Place
	Node      string
	Namespace string // the Pod object's
}

// Machines are all machines, in the order of the spec.
func (l *Lab) Machines() []*Machine {
	var all []*Machine
	l.Spec.nodes(func(loc *Location, n *Node) {
		all = append(all, &Machine{
			Place:  Place{Name: n.Name, Location: loc.Name, Addr: n.InternalIP(), lab: l, group: l.group(n.Name)},
			Public: n.PublicIP,
			loc:    loc, spec: n,
		})
	})
	return all
}

// Nodes are the machines that are nodes of the cluster.
func (l *Lab) Nodes() []*Machine {
	return slices.DeleteFunc(l.Machines(), func(m *Machine) bool { return m.spec.Outsider })
}

// Agents are the nodes that run the agent.
func (l *Lab) Agents() []*Machine {
	return slices.DeleteFunc(l.Nodes(), func(m *Machine) bool { return l.Spec.NoAgent || m.spec.NoAgent })
}

// Pods are all pods, in the order of their nodes.
func (l *Lab) Pods() []*Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.pods)
}

// Machine returns the machine of that name and panics if the spec has none:
// that is a mistake in the scenario.
func (l *Lab) Machine(name string) *Machine {
	for _, m := range l.Machines() {
		if m.Name == name {
			return m
		}
	}
	panic(fmt.Sprintf("lab %s has no machine %q", l.Name, name))
}

// Pod returns the pod of that name, or the first of the node of that name, and
// panics if there is none.
func (l *Lab) Pod(name string) *Pod {
	for _, p := range l.Pods() {
		if p.Name == name || p.Node == name {
			return p
		}
	}
	panic(fmt.Sprintf("lab %s has no pod %q", l.Name, name))
}

// Internet is the network between the locations.
func (l *Lab) Internet() *Place {
	return &Place{Name: internet, Addr: l.Spec.internetAddr(), lab: l, group: l.group(internet)}
}

// Router is a location's.
func (l *Lab) Router(location string) *Place {
	for i := range l.Spec.Locations {
		if loc := &l.Spec.Locations[i]; loc.Name == location {
			name := routerName(loc)
			return &Place{Name: name, Location: loc.Name, Addr: loc.Router, lab: l, group: l.group(name)}
		}
	}
	panic(fmt.Sprintf("lab %s has no location %q", l.Name, location))
}

// Find returns a place by the name that people type: a machine, pod/NAME,
// router-LOCATION or internet.
func (l *Lab) Find(name string) (*Place, error) {
	for _, m := range l.Machines() {
		if m.Name == name {
			return &m.Place, nil
		}
	}
	for _, p := range l.Pods() {
		if "pod/"+p.Name == name || p.Name == name {
			return &p.Place, nil
		}
	}
	for _, loc := range l.Spec.Locations {
		if name == routerName(&loc) && len(loc.Subnets) > 0 {
			return l.Router(loc.Name), nil
		}
	}
	if name == internet {
		return l.Internet(), nil
	}
	return nil, fmt.Errorf("lab %s has no place %q: want a node, pod/NAME, router-LOCATION or internet", l.Name, name)
}

// Alive tells whether the place is powered on.
func (p *Place) Alive() bool { return p.group.sub(holder).pid() != 0 }

func (p *Place) pid() (int, error) {
	if pid := p.group.sub(holder).pid(); pid != 0 {
		return pid, nil
	}
	return 0, fmt.Errorf("%s is powered off", p.Name)
}

// Exec runs a command at the place and returns its standard output; the error
// carries its standard error.
func (p *Place) Exec(ctx context.Context, argv ...string) (string, error) {
	pid, err := p.pid()
	if err != nil {
		return "", err
	}
	out, err := run(ctx, p.group.sub("exec"), "", append(enterArgs(pid), argv...)...)
	if err != nil {
		return out, fmt.Errorf("%s: %w", p.Name, err)
	}
	return out, nil
}

// Shell runs a script at the place, ended by its first failing command.
func (p *Place) Shell(ctx context.Context, script string) (string, error) {
	return p.Exec(ctx, "/bin/sh", "-euc", script)
}

// Become replaces the running program by a command at the place, with the
// terminal it has.
func (p *Place) Become(argv ...string) error {
	pid, err := p.pid()
	if err != nil {
		return err
	}
	// Into the lab's group, so that a forgotten shell does not outlive it.
	g := p.group.sub("exec")
	if err := os.MkdirAll(string(g), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(string(g)+"/cgroup.procs", []byte("0"), 0o644); err != nil {
		return err
	}
	// Where the caller is, so that relative paths mean what they say.
	enter := enterArgs(pid)
	if dir, err := os.Getwd(); err == nil {
		enter = slices.Insert(enter, len(enter)-1, "--wdns="+dir)
	}
	argv = append(enter, argv...)
	return syscall.Exec(argv[0], argv, append(cleanEnv(), "PS1="+p.Name+"# "))
}

// Ping sends up to three echo requests and is content with one answer.
func (p *Place) Ping(ctx context.Context, to netip.Addr) error {
	_, err := p.Exec(ctx, "/usr/bin/ping", "-n", "-q", "-c", "3", "-i", "0.2", "-w", "3", to.String())
	return err
}

// Get fetches a URL from the place, as curl there would: the connection is
// made in its network.
func (p *Place) Get(ctx context.Context, url string) (string, error) {
	body, err := fetch(ctx, p.Dial, url)
	if err != nil {
		return body, fmt.Errorf("%s: %w", p.Name, err)
	}
	return body, nil
}

// fetch is one GET, over a connection that dial makes.
func fetch(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), url string) (string, error) {
	client := &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		Timeout:   5 * time.Second,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// Fetch is fetch for a process of a place.
func Fetch(ctx context.Context, url string) (string, error) {
	return fetch(ctx, new(net.Dialer).DialContext, url)
}

// SeenBy asks a pod which source address it sees when this place connects to
// it. Pings hide address translation; this does not.
func (p *Place) SeenBy(ctx context.Context, pod *Pod) (netip.Addr, error) {
	return sourceOf(p.Get(ctx, sourceURL(netip.AddrPortFrom(pod.Addr, EchoPort))))
}

// SeenAt is SeenBy for any address that leads to a pod's EchoPort, such as a
// ClusterIP. A process of the place asks: where Cilium replaces kube-proxy, it
// is in the processes' control group, not in the network, that a ClusterIP means
// anything.
func (p *Place) SeenAt(ctx context.Context, at netip.AddrPort) (netip.Addr, error) {
	return sourceOf(p.Exec(ctx, p.lab.path("bin", "kilolab"), "fetch", sourceURL(at)))
}

func sourceURL(at netip.AddrPort) string { return "http://" + at.String() + "/source" }

func sourceOf(body string, err error) (netip.Addr, error) {
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(strings.TrimSpace(body))
}

// Dial opens a connection from the place, inside its network.
func (p *Place) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	pid, err := p.pid()
	if err != nil {
		return nil, err
	}
	return dialFrom(ctx, pid, network, address)
}

// dialFrom dials in the network namespace of a process. A socket belongs to the
// namespace in which it was made, so only the thread that makes it has to visit.
func dialFrom(ctx context.Context, pid int, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine instead of
		// carrying a foreign namespace back to the others.
		runtime.LockOSThread()
		ns, err := os.Open(netnsPath(pid))
		if err != nil {
			done <- result{err: err}
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("enter %s: %w", netnsPath(pid), err)}
			return
		}
		// Bounded for itself: an HTTP client gives up without ending the
		// attempt, whose packets would turn up in somebody's capture later.
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
