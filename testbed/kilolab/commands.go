package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kilo-overlay/kilo/testbed/lab"
)

// upFlags declares what up and demo have in common.
func (k *call) upFlags() func() (lab.Spec, lab.Options, error) {
	var (
		specFile = k.flags.String("spec", "", "the lab as JSON (see kilolab spec); other flags change it")
		binary   = k.flags.String("kg", "", "agent to run; default: built from the source tree")
		noAgent  = k.flags.Bool("no-kg", false, "leave the agent out: the CNI alone")
		cni      = k.flags.String("cni", "", "host CNI: flannel (default), cilium, flannel+cilium or none")
		backend  = k.flags.String("backend", "", "Flannel's: vxlan or host-gw")
		direct   = k.flags.Bool("direct-routing", false, "Flannel's vxlan routes plainly inside a segment")
		nft      = k.flags.Bool("flannel-nft", false, "Flannel masquerades by nftables, not iptables")
		mode     = k.flags.String("cilium-mode", "", "Cilium's: tunnel (default) or native")
		hostward = k.flags.String("host-routing", "", "Cilium's: legacy (default) or bpf, which replaces kube-proxy")
		replace  = k.flags.Bool("kube-proxy-replacement", false, "Cilium serves Services, not kube-proxy")
		proxy    = k.flags.String("proxy-mode", "", "kube-proxy's: iptables (default), nftables or off")
		filter   = k.flags.String("rp-filter", "", "on every interface of every node: 0, 1 or 2 (default 1, strict)")
		mtu      = k.flags.Int("mtu", 0, "of LANs and public legs, in bytes (default 1500)")
		routed   = k.flags.Bool("routed-internet", false, "a link of its own for every public leg, not one segment")
		extra    repeated
		cilium   repeated
	)
	k.flags.Var(&extra, "agent-flag", "added to every agent's command line; repeat")
	k.flags.Var(&cilium, "cilium-flag", "added to the command line of every Cilium agent; repeat")
	return func() (lab.Spec, lab.Options, error) {
		s := lab.Default()
		if *specFile != "" {
			text, err := os.ReadFile(*specFile)
			if err != nil {
				return s, lab.Options{}, err
			}
			s = lab.Spec{}
			if err := json.Unmarshal(text, &s); err != nil {
				return s, lab.Options{}, fmt.Errorf("%s: %w", *specFile, err)
			}
		}
		s.NoAgent = s.NoAgent || *noAgent
		s.RoutedInternet = s.RoutedInternet || *routed
		s.Flannel.DirectRouting = s.Flannel.DirectRouting || *direct
		s.Flannel.NFTables = s.Flannel.NFTables || *nft
		if *cni != "" {
			s.CNI = lab.CNI(*cni)
		}
		if *mode != "" {
			s.Cilium.Mode = lab.CiliumMode(*mode)
		}
		if *hostward != "" {
			s.Cilium.HostRouting = lab.HostRouting(*hostward)
		}
		s.Cilium.KubeProxyReplacement = s.Cilium.KubeProxyReplacement || *replace
		s.Cilium.Flags = append(s.Cilium.Flags, cilium...)
		if *backend != "" {
			s.Flannel.Backend = *backend
		}
		if *proxy != "" {
			s.ProxyMode = lab.ProxyMode(*proxy)
		}
		if *mtu != 0 {
			s.MTU = *mtu
		}
		if *filter != "" {
			f, err := lab.ParseRPFilter(*filter)
			if err != nil {
				return s, lab.Options{}, usageError(err.Error())
			}
			s.RPFilter = f
		}
		s.AgentFlags = append(s.AgentFlags, extra...)
		return s, lab.Options{Name: k.name, Progress: os.Stdout, AgentBinary: *binary}, nil
	}
}

func up(ctx context.Context, k *call) error {
	read := k.upFlags()
	if _, err := k.parse(0, 0); err != nil {
		return err
	}
	s, opts, err := read()
	if err != nil {
		return err
	}
	_, err = lab.Up(ctx, s, opts)
	if err != nil && ctx.Err() != nil {
		return interrupted(k.name)
	}
	return err
}

func interrupted(name string) error {
	return fmt.Errorf("interrupted; kilolab down --name %s removes what is there", name)
}

// demo may be called again and again.
func demo(ctx context.Context, k *call) error {
	read := k.upFlags()
	if _, err := k.parse(0, 0); err != nil {
		return err
	}
	s, opts, err := read()
	if err != nil {
		return err
	}
	l, err := lab.Open(k.name)
	switch given := k.given(); {
	case err == nil && given != nil:
		return fmt.Errorf("lab %s is up already and %s would change nothing: take it down first (kilolab down --name %s)", k.name, strings.Join(given, " "), k.name)
	case err == nil:
		fmt.Printf("lab %s is up already\n", k.name)
		if len(l.Agents()) > 0 {
			renewed, err := l.RenewAgents(ctx)
			if err != nil {
				return err
			}
			if renewed {
				fmt.Println("kg has changed since: it is renewed on all nodes")
			}
		}
	case errors.Is(err, lab.ErrNoLab):
		l, err = lab.Up(ctx, s, opts)
	default:
		fmt.Printf("removing the remains of an earlier run: %v\n", err)
		if err := lab.Down(ctx, k.name); err != nil {
			return err
		}
		l, err = lab.Up(ctx, s, opts)
	}
	if err != nil && ctx.Err() != nil {
		return interrupted(k.name)
	}
	if err != nil {
		return err
	}
	var m lab.Matrix
	switch off := poweredOff(l); {
	case len(l.Agents()) == 0:
		fmt.Println("there is no kg in this lab: no pod reaches another location")
		m, err = l.Matrix(ctx)
	case len(off) > 0:
		fmt.Printf("powered off: %s; the mesh is not whole without (kilolab poweron NODE)\n", strings.Join(off, ", "))
		m, err = l.Matrix(ctx)
	default:
		fmt.Println("waiting for the mesh")
		m, err = l.WaitForMesh(ctx, 2*time.Minute)
	}
	fmt.Println()
	fmt.Println(l.MeshTable(ctx))
	if len(m.Pairs) > 0 {
		fmt.Println(m)
	}
	return err
}

func poweredOff(l *lab.Lab) []string {
	var off []string
	for _, m := range l.Machines() {
		if !m.Alive() {
			off = append(off, m.Name)
		}
	}
	return off
}

func down(ctx context.Context, k *call) error {
	if _, err := k.parse(0, 0); err != nil {
		return err
	}
	names, err := lab.Names()
	if err == nil && !slices.Contains(names, k.name) {
		// No error: down may be said again and again, and something without
		// files may be left of an interrupted up.
		fmt.Printf("there is no lab %s%s\n", k.name, others(names))
	}
	return errors.Join(err, lab.Down(ctx, k.name))
}

func others(names []string) string {
	if len(names) == 0 {
		return ", nor any other"
	}
	return "; there is " + strings.Join(names, ", ")
}

func list(_ context.Context, k *call) error {
	if _, err := k.parse(0, 0); err != nil {
		return err
	}
	names, err := lab.Names()
	for _, n := range names {
		fmt.Println(n)
	}
	return err
}

// open parses the command line and opens the lab.
func (k *call) open(least, most int) (*lab.Lab, []string, error) {
	words, err := k.parse(least, most)
	if err != nil {
		return nil, nil, err
	}
	l, err := lab.Open(k.name)
	return l, words, err
}

// openAt is open for commands whose first word is a machine.
func (k *call) openAt(most int) (*lab.Lab, *lab.Machine, []string, error) {
	l, words, err := k.open(1, most)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, m := range l.Machines() {
		if m.Name == words[0] {
			return l, m, words[1:], nil
		}
	}
	return nil, nil, nil, fmt.Errorf("lab %s has no node %q", l.Name, words[0])
}

func status(ctx context.Context, k *call) error {
	l, _, err := k.open(0, 0)
	if err != nil {
		return err
	}
	fmt.Print(l.Describe())
	fmt.Println()
	fmt.Print(l.MeshTable(ctx))
	return nil
}

func matrix(ctx context.Context, k *call) error {
	format := k.flags.String("o", "", "json")
	l, _, err := k.open(0, 0)
	if err != nil {
		return err
	}
	m, err := l.Matrix(ctx)
	if err != nil {
		return err
	}
	switch *format {
	case "":
		fmt.Println(m)
	case "json":
		text, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(text))
		fmt.Fprintln(os.Stderr, m.Summary()) // standard output is JSON alone
	default:
		return usageError(fmt.Sprintf("-o %q: want json", *format))
	}
	if !m.OK() {
		return fmt.Errorf("%d pairs fail", len(m.Failed()))
	}
	return nil
}

func execAt(_ context.Context, k *call) error {
	l, words, err := k.open(1, 1)
	if err != nil {
		return err
	}
	p, err := l.Find(words[0])
	if err != nil {
		return err
	}
	if len(k.rest) == 0 {
		k.rest = []string{"/bin/sh"}
	}
	return p.Become(k.rest...)
}

func kubectl(_ context.Context, k *call) error {
	l, err := k.openFor()
	if err != nil {
		return err
	}
	return l.BecomeKubectl(k.rest...)
}

func kgctl(_ context.Context, k *call) error {
	l, err := k.openFor()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(self), "kgctl")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%w: make build puts it beside kilolab", err)
	}
	return l.BecomeKgctl(program, k.rest...)
}

// openFor is open for another program's command line: flags that are not ours
// are that one's, so `--` may be left out.
func (k *call) openFor() (*lab.Lab, error) {
	if len(k.raw) > 0 && k.raw[0] != "--name" && !strings.HasPrefix(k.raw[0], "--name=") && k.raw[0] != "--" {
		k.raw = append([]string{"--"}, k.raw...)
	}
	l, _, err := k.open(0, 0)
	return l, err
}

func logs(_ context.Context, k *call) error {
	_, m, words, err := k.openAt(2)
	if err != nil {
		return err
	}
	f, err := os.Open(m.LogFile(daemonOf(words)))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(os.Stdout, f)
	return err
}

func daemonOf(words []string) string {
	switch {
	case len(words) == 0:
		return "kg"
	case words[0] == "flannel":
		return "flanneld"
	case words[0] == "cilium":
		return "cilium-agent"
	}
	return words[0]
}

func restart(ctx context.Context, k *call) error {
	_, m, words, err := k.openAt(2)
	if err != nil {
		return err
	}
	switch d := daemonOf(words); d {
	case "kg":
		if err := m.RestartAgent(ctx); err != nil {
			return err
		}
		return m.AgentStays(ctx)
	case "flanneld":
		return m.RestartFlannel(ctx)
	case "cilium-agent":
		return m.RestartCilium(ctx)
	case "kube-proxy":
		return m.RestartProxy(ctx)
	default:
		return usageError(fmt.Sprintf("cannot restart %q: want kg, flanneld, cilium or kube-proxy", d))
	}
}

func kill(ctx context.Context, k *call) error {
	_, m, words, err := k.openAt(2)
	if err != nil {
		return err
	}
	return m.KillDaemon(ctx, daemonOf(words))
}

func stopAgent(ctx context.Context, k *call) error {
	_, m, _, err := k.openAt(1)
	if err != nil {
		return err
	}
	return m.StopAgent(ctx)
}

func startAgent(ctx context.Context, k *call) error {
	_, m, _, err := k.openAt(1)
	if err != nil {
		return err
	}
	if err := m.StartAgent(ctx, k.rest...); err != nil {
		return err
	}
	return m.AgentStays(ctx)
}

func upgrade(ctx context.Context, k *call) error {
	binary := k.flags.String("kg", "", "agent to run; default: built from the source tree")
	l, _, err := k.open(0, 0)
	if err != nil {
		return err
	}
	return l.UpgradeAgents(ctx, *binary)
}

func powerOff(ctx context.Context, k *call) error {
	_, m, _, err := k.openAt(1)
	if err != nil {
		return err
	}
	return m.PowerOff(ctx)
}

func powerOn(ctx context.Context, k *call) error {
	_, m, _, err := k.openAt(1)
	if err != nil {
		return err
	}
	return m.PowerOn(ctx)
}

func partition(ctx context.Context, k *call) error {
	oneWay := k.flags.Bool("one-way", false, "only from A to B")
	l, words, err := k.open(2, 2)
	if err != nil {
		return err
	}
	if *oneWay {
		return l.PartitionOneWay(ctx, words[0], words[1])
	}
	return l.Partition(ctx, words[0], words[1])
}

func heal(ctx context.Context, k *call) error {
	l, words, err := k.open(0, 2)
	if err != nil {
		return err
	}
	switch len(words) {
	case 0:
		return l.HealAll(ctx)
	case 2:
		return l.Heal(ctx, words[0], words[1])
	}
	return usageError("usage: kilolab heal [A B]")
}

func capture(_ context.Context, k *call) error {
	device := k.flags.String("i", "", "device; default: all that passes the place")
	filter := k.flags.String("filter", "", "as tcpdump reads it; or give it after --")
	l, words, err := k.open(1, 1)
	if err != nil {
		return err
	}
	p, err := l.Find(words[0])
	if err != nil {
		return err
	}
	return p.BecomeCapture(*device, append(strings.Fields(*filter), k.rest...)...)
}

func ciliumGet(ctx context.Context, k *call) error {
	_, m, words, err := k.openAt(2)
	if err != nil {
		return err
	}
	text, err := m.CiliumGet(ctx, strings.Join(words, ""))
	if err != nil {
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(text), "", "  "); err != nil {
		return err
	}
	fmt.Println(strings.TrimSpace(pretty.String()))
	return nil
}

func netState(ctx context.Context, k *call) error {
	_, m, _, err := k.openAt(1)
	if err != nil {
		return err
	}
	s, err := m.NetState(ctx)
	fmt.Print(s)
	return err
}

func spec(_ context.Context, k *call) error {
	if _, err := k.parse(0, 0); err != nil {
		return err
	}
	s, err := lab.Default().Complete()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}

func kubelets(ctx context.Context, k *call) error {
	if _, err := k.parse(0, 0); err != nil {
		return err
	}
	return lab.Kubelets(ctx, k.name)
}

func echo(_ context.Context, k *call) error {
	words, err := k.parse(1, 1)
	if err != nil {
		return err
	}
	return lab.Echo(words[0])
}

func tunnel(ctx context.Context, k *call) error {
	words, err := k.parse(1, 1)
	if err != nil {
		return err
	}
	return lab.Tunnel(ctx, words[0])
}

func clang(ctx context.Context, k *call) error {
	words, err := k.parse(1, 1)
	if err != nil {
		return err
	}
	return lab.Clang(ctx, words[0], k.rest)
}

func fetch(ctx context.Context, k *call) error {
	words, err := k.parse(1, 1)
	if err != nil {
		return err
	}
	body, err := lab.Fetch(ctx, words[0])
	fmt.Print(body)
	return err
}

func container(_ context.Context, k *call) error {
	words, err := k.parse(1, 1)
	if err != nil {
		return err
	}
	return lab.BecomeContainer(words[0])
}

func forward(ctx context.Context, k *call) error {
	words, err := k.parse(2, 2)
	if err != nil {
		return err
	}
	return lab.Forward(ctx, words[0], words[1])
}
