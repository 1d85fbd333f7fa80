package tools

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Names of the binaries, keys of Paths.
const (
	KubeAPIServer         = "kube-apiserver"
	KubeControllerManager = "kube-controller-manager"
	KubeProxy             = "kube-proxy"
	Kubectl               = "kubectl"
	Etcd                  = "etcd"
	CNITool               = "cnitool"
	CNIBridge             = "bridge"
	CNIHostLocal          = "host-local"
	CNILoopback           = "loopback"
	CNIPortMap            = "portmap"
	Flanneld              = "flanneld"
	CiliumAgent           = "cilium-agent"
	CiliumCNI             = "cilium-cni"
	CiliumBPF             = "bpf"  // a directory: what the agent compiles
	CiliumCRDs            = "crds" // a directory of YAML
	Staticcheck           = "staticcheck"
)

// Set is a group of binaries that one module below modules/ pins.
type Set struct {
	Name string // the module's directory
	// Release is the module whose version is that of the set.
	Release string
	// Stamp is the linker variable that receives this version, for programs
	// that report it to others. Empty: none.
	Stamp string
	// StampFormat is how it is written there, as a template of `go list -m`.
	// Empty: the plain version, "v1.2.3".
	StampFormat string
	Binaries    []Binary
	// Trees are directories of Release's source that the programs read when
	// they run.
	Trees []Tree
	// OnDemand sets are built only when asked for by name.
	OnDemand bool
}

// Binary is one program of a set.
type Binary struct {
	Name    string
	Package string // import path of its main package; "." is the module itself
	// Typical is how long it takes on two cores when nothing is cached but
	// the binaries before it in the set are built. Only people read it.
	Typical time.Duration
}

// Tree is a directory of source, kept beside the binaries.
type Tree struct {
	Name string // there, and its key in Paths
	From string // inside the module
	// Without are directories below From that are left out.
	Without []string
}

// Sets returns what can be built, in the order in which it is built: the
// longest first, as its progress is the one worth watching.
func Sets() []Set {
	return []Set{
		{
			Name:    "cilium",
			Release: "github.com/cilium/cilium",
			Stamp:   "github.com/cilium/cilium/pkg/version.ciliumVersion",
			// A build of Cilium's own has commit and date in these places; with
			// less the agent finds no version at all.
			StampFormat: "{{slice .Version 1}} module release",
			Binaries: []Binary{
				{CiliumAgent, "github.com/cilium/cilium/daemon", 10 * time.Minute},
				{CiliumCNI, "github.com/cilium/cilium/plugins/cilium-cni", 10 * time.Second},
			},
			Trees: []Tree{
				{Name: CiliumBPF, From: "bpf", Without: []string{"tests", "complexity-tests", "test-progs"}},
				{Name: CiliumCRDs, From: "pkg/k8s/apis/cilium.io/client/crds"},
			},
		},
		{
			Name:    "kubernetes",
			Release: "k8s.io/kubernetes",
			// Without it the API server calls itself v0.0.0-master.
			Stamp: "k8s.io/component-base/version.gitVersion",
			Binaries: []Binary{
				{KubeAPIServer, "k8s.io/kubernetes/cmd/kube-apiserver", 4 * time.Minute},
				{KubeControllerManager, "k8s.io/kubernetes/cmd/kube-controller-manager", time.Minute},
				{KubeProxy, "k8s.io/kubernetes/cmd/kube-proxy", 10 * time.Second},
				{Kubectl, "k8s.io/kubernetes/cmd/kubectl", 20 * time.Second},
			},
		},
		{
			Name:     "etcd",
			Release:  "go.etcd.io/etcd/server/v3",
			Binaries: []Binary{{Etcd, "go.etcd.io/etcd/server/v3", 30 * time.Second}},
		},
		{
			Name:    "cni",
			Release: "github.com/containernetworking/plugins",
			Binaries: []Binary{
				{CNIBridge, "github.com/containernetworking/plugins/plugins/main/bridge", 10 * time.Second},
				{CNIHostLocal, "github.com/containernetworking/plugins/plugins/ipam/host-local", 5 * time.Second},
				{CNILoopback, "github.com/containernetworking/plugins/plugins/main/loopback", 5 * time.Second},
				{CNIPortMap, "github.com/containernetworking/plugins/plugins/meta/portmap", 5 * time.Second},
				{CNITool, "github.com/containernetworking/cni/cnitool", 5 * time.Second},
			},
		},
		{
			Name:     "flannel",
			Release:  "github.com/flannel-io/flannel",
			Binaries: []Binary{{Flanneld, ".", time.Minute}},
		},
		{
			Name:     "lint",
			Release:  "honnef.co/go/tools",
			Binaries: []Binary{{Staticcheck, "honnef.co/go/tools/cmd/staticcheck", time.Minute}},
			OnDemand: true,
		},
	}
}

// choose returns the named sets in their building order, or without names all
// that are not on demand.
func choose(sets []Set, names []string) ([]Set, error) {
	for _, name := range names {
		if !slices.ContainsFunc(sets, func(s Set) bool { return s.Name == name }) {
			var known []string
			for _, s := range sets {
				known = append(known, s.Name)
			}
			return nil, fmt.Errorf("no tool set is called %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	var chosen []Set
	for _, s := range sets {
		if slices.Contains(names, s.Name) || len(names) == 0 && !s.OnDemand {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}
