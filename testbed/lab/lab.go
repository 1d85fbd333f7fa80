package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// Options say how a lab comes up, as opposed to what it is.
type Options struct {
	// Name tells labs on one machine apart.
	Name string // "": default
	// Progress receives short lines. nil: nobody.
	Progress io.Writer
	// AgentBinary is the agent to run. "": built from the source tree.
	AgentBinary string
	// HoldAgents leaves the agents to StartAgents: the cluster first runs as
	// its CNI made it.
	HoldAgents bool
}

// Lab is a running lab. It can be opened from several processes at a time; all
// it knows is on disk, in its cgroup and in the kernel.
type Lab struct {
	Name string
	Spec Spec // complete

	dir    string // everything on disk
	groups group  // everything that runs
	tools  tools.Paths

	pods []*Pod // in the order of the spec
	cuts []Cut  // see Partition

	progress io.Writer
	began    time.Time
	mu       sync.Mutex // guards progress, and the file behind save
}

// record is what Up leaves for others.
type record struct {
	Name     string      `json:"name"`
	Complete bool        `json:"complete"` // Up came to its end
	Spec     Spec        `json:"spec"`
	Tools    tools.Paths `json:"tools"`
	Pods     []podRecord `json:"pods"`
	Cuts     []Cut       `json:"cuts,omitempty"`
}

type podRecord struct {
	Name string `json:"name"`
	Node string `json:"node"`
	Addr string `json:"addr"`
}

// ErrNoLab is returned by Open where there is none of that name.
var ErrNoLab = errors.New("no such lab")

// Dir is where labs of this machine are kept: $KILO_LAB_DIR, or labs in the
// tools' cache directory.
func Dir() (string, error) {
	if dir := os.Getenv("KILO_LAB_DIR"); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := tools.CacheDir()
	return filepath.Join(cache, "labs"), err
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)

func handle(name string) (*Lab, error) {
	if name == "" {
		name = "default"
	}
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("lab name %q: want lower case letters, digits and dashes", name)
	}
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	for _, covered := range []string{"/etc", "/var/lib", "/run"} {
		if dir == covered || strings.HasPrefix(dir, covered+"/") {
			return nil, fmt.Errorf("labs cannot be kept in %s: nodes have their own %s; set KILO_LAB_DIR", dir, covered)
		}
	}
	groups, err := labGroups()
	if err != nil {
		return nil, err
	}
	return &Lab{Name: name, dir: filepath.Join(dir, name), groups: groups.sub(name), began: time.Now()}, nil
}

// Up brings a lab up and returns when its control plane, its CNI and its pods
// work and the agents are started. It does not wait for the mesh: see
// WaitForMesh. An Up that ends early leaves its remains to Down.
func Up(ctx context.Context, spec Spec, opts Options) (*Lab, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	l, err := handle(opts.Name)
	if err != nil {
		return nil, err
	}
	if l.Spec, err = spec.Complete(); err != nil {
		return nil, fmt.Errorf("lab %s: %w", l.Name, err)
	}
	l.progress = opts.Progress
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(l.path("lab.json")); err == nil || l.groups.exists() {
		return nil, fmt.Errorf("lab %s exists already, or the remains of one: take it down first (kilolab down --name %s)", l.Name, l.Name)
	}

	if l.Spec.CNI.hasCilium() {
		if err := checkCiliumNeeds(); err != nil {
			return nil, err
		}
	}

	// What is built, and where it takes its time.
	if l.tools, err = tools.Ensure(ctx, l.progress, l.Spec.toolSets()...); err != nil {
		return nil, err
	}
	l.began = time.Now()
	if err := l.save(false); err != nil {
		return nil, err
	}
	if err := l.buildHelper(ctx); err != nil {
		return nil, err
	}
	if err := l.provideAgent(ctx, opts.AgentBinary); err != nil {
		return nil, err
	}
	if err := l.writeConfig(); err != nil {
		return nil, err
	}

	// The ground: internet, routers, machines.
	if err := l.wireInternet(ctx); err != nil {
		return nil, err
	}
	err = each(ctx, l.Spec.Locations, func(ctx context.Context, loc Location) error {
		if err := l.wireRouter(ctx, &loc); err != nil {
			return err
		}
		for i := range loc.Nodes {
			if err := l.boot(ctx, &loc, &loc.Nodes[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.say("%d machines in %d locations are wired", len(l.Machines()), len(l.Spec.Locations))

	// The cluster.
	if err := l.startControlPlane(ctx); err != nil {
		return nil, err
	}
	l.say("control plane answers")
	if err := l.register(ctx); err != nil {
		return nil, err
	}
	if err := l.startKubelets(ctx); err != nil {
		return nil, err
	}
	if err := each(ctx, l.Nodes(), func(ctx context.Context, n *Machine) error { return l.startNode(ctx, n) }); err != nil {
		return nil, err
	}
	l.say("%d nodes and %d pods run", len(l.Nodes()), len(l.Pods()))
	if l.Spec.CNI.hasCilium() {
		if err := l.waitForCilium(ctx); err != nil {
			return nil, err
		}
		l.say("all endpoints of Cilium are ready, pods reach each other inside locations")
	}

	if !opts.HoldAgents {
		if err := l.StartAgents(ctx); err != nil {
			return nil, err
		}
	}
	return l, l.save(true)
}

// toolSets are what the lab is made of.
func (s *Spec) toolSets() []string {
	sets := []string{"kubernetes", "etcd", "cni"}
	if s.CNI.hasFlannel() {
		sets = append(sets, "flannel")
	}
	if s.CNI.hasCilium() {
		sets = append(sets, "cilium")
	}
	return sets
}

// StartAgents starts all agents at once, as a DaemonSet does.
func (l *Lab) StartAgents(ctx context.Context) error {
	if err := each(ctx, l.Agents(), func(ctx context.Context, n *Machine) error { return n.startAgentPod(ctx) }); err != nil {
		return err
	}
	if n := len(l.Agents()); n > 0 {
		l.say("%d agents are started", n)
	}
	return nil
}

// Open returns the lab of that name ("" is default), or ErrNoLab.
func Open(name string) (*Lab, error) {
	l, complete, err := open(name)
	switch {
	case err != nil:
		return nil, err
	case !complete:
		return nil, fmt.Errorf("lab %s is coming up, or never came up to its end: take it down first (kilolab down --name %s)", l.Name, l.Name)
	case !l.Internet().Alive():
		return nil, fmt.Errorf("lab %s is on disk but nothing of it runs, as after a reboot: take it down first (kilolab down --name %s)", l.Name, l.Name)
	}
	return l, nil
}

// open is Open for labs that are still coming up, too.
func open(name string) (l *Lab, complete bool, err error) {
	if l, err = handle(name); err != nil {
		return nil, false, err
	}
	text, err := os.ReadFile(l.path("lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("%w: %s is not up", ErrNoLab, l.Name)
	}
	if err != nil {
		return nil, false, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, false, fmt.Errorf("%s: %w: take the lab down", l.path("lab.json"), err)
	}
	l.Spec, l.tools, l.cuts = r.Spec, r.Tools, r.Cuts
	for _, p := range r.Pods {
		if err := l.restorePod(p); err != nil {
			return nil, false, err
		}
	}
	return l, r.Complete, nil
}

// Down ends every process of the lab of that name ("" is default) and removes
// what it left, whoever brought it up and however far that came. A lab that
// does not exist is down.
func Down(ctx context.Context, name string) error {
	l, err := handle(name)
	if err != nil {
		return err
	}
	// Whoever is bringing it up runs outside its group: end the lab only when
	// that one has let go.
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.groups.remove(ctx); err != nil {
		return fmt.Errorf("lab %s: %w", l.Name, err)
	}
	os.Remove(filepath.Dir(string(l.groups))) // the last one takes the parent along
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("lab %s: %w", l.Name, err)
	}
	return nil
}

// Down is the package's Down for this lab.
func (l *Lab) Down(ctx context.Context) error { return Down(ctx, l.Name) }

// Names lists the labs on this machine, those half up included.
func Names() ([]string, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// lock keeps two of Up and Down from working on one lab at a time. It is a name
// that the kernel forgets together with the process that holds it.
func (l *Lab) lock() (unlock func(), err error) {
	held, err := net.Listen("unix", "@kilolab/"+l.Name)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("lab %s is being brought up or taken down by another process: wait for it, or end it", l.Name)
	}
	if err != nil {
		return nil, err
	}
	return func() { held.Close() }, nil
}

func (l *Lab) save(complete bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := record{Name: l.Name, Complete: complete, Spec: l.Spec, Tools: l.tools, Cuts: l.cuts}
	for _, p := range l.pods {
		r.Pods = append(r.Pods, podRecord{Name: p.Name, Node: p.Node, Addr: p.Addr.String()})
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	fresh := l.path("lab.json.new")
	if err := os.WriteFile(fresh, text, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, l.path("lab.json"))
}

// say prints a line of progress with the seconds since the lab began.
func (l *Lab) say(format string, args ...any) {
	if l.progress == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.progress, "%5.1fs  %s\n", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

func (l *Lab) path(names ...string) string {
	return filepath.Join(append([]string{l.dir}, names...)...)
}

// group is the cgroup of a place's daemon.
func (l *Lab) group(place string, daemon ...string) group {
	return l.groups.sub(append([]string{place}, daemon...)...)
}

// disk is what a machine keeps over a power-off.
func (l *Lab) disk(node string) string { return l.path("disk", node) }

func (l *Lab) logFile(place, daemon string) string { return l.path("log", place, daemon+".log") }

// each calls f for all items at the same time and returns the first error.
func each[T any](ctx context.Context, items []T, f func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, item := range items {
		g.Go(func() error { return f(ctx, item) })
	}
	return g.Wait()
}
