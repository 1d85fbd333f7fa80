package lab

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// user is somebody who talks to the API server. Everybody has a name of their
// own, so that the audit log tells whose request it was.
type user struct {
	name   string // as the API server knows it
	groups string
}

// Users of the API server, by the name of their kubeconfig.
func users() map[string]user {
	return map[string]user{
		"admin":              {"lab:admin", "system:masters"},
		"kubelet":            {"lab:kubelet", "system:masters"},
		"controller-manager": {"system:kube-controller-manager", "system:masters"},
		"kube-proxy":         {"system:kube-proxy", ""},
		"flannel":            {"system:serviceaccount:kube-flannel:flannel", "system:serviceaccounts"},
		"cilium":             {"system:serviceaccount:kube-system:cilium", "system:masters"},
		"agent":              {AgentUser, "system:serviceaccounts"},
	}
}

// AgentUser is whom the API server takes an agent for.
const AgentUser = "system:serviceaccount:kube-system:kilo"

const apiPort = 6443

// apiServer is the address that everything outside of the control plane's own
// host uses: it is reachable without the mesh.
func (l *Lab) apiServer() string {
	return fmt.Sprintf("https://%s:%d", l.Spec.controlPlane().PublicIP, apiPort)
}

// writeConfig writes certificates, tokens and kubeconfigs.
func (l *Lab) writeConfig() error {
	cp := l.Spec.controlPlane()
	err := certificates(l.path("pki"),
		[]net.IP{cp.PublicIP.AsSlice(), cp.InternalIP().AsSlice(), hostOf(l.Spec.ServiceNetwork, 1).AsSlice(), net.IPv4(127, 0, 0, 1)},
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.path("kubeconfig"), 0o700); err != nil {
		return err
	}
	var tokens strings.Builder
	for name, u := range users() {
		token := randomToken()
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, u.name, u.name, u.groups)
		config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster: {server: %q, certificate-authority: %q}
users:
- name: %[3]q
  user: {token: %[4]q}
contexts:
- name: lab
  context: {cluster: lab, user: %[3]q}
current-context: lab
`, l.apiServer(), l.path("pki", "ca.crt"), name, token)
		if err := os.WriteFile(l.Kubeconfig(name), []byte(config), 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(l.path("pki", "tokens.csv"), []byte(tokens.String()), 0o600); err != nil {
		return err
	}
	// One line a request: who, with what, did which verb on what.
	return os.WriteFile(l.path("audit-policy.yaml"), []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
`), 0o644)
}

// Kubeconfig is the file with which a user of users() reaches the API server,
// from any machine of the lab.
func (l *Lab) Kubeconfig(user string) string { return l.path("kubeconfig", user) }

// startControlPlane starts etcd, the API server and the controller manager on
// their host and applies what the cluster needs from the start.
func (l *Lab) startControlPlane(ctx context.Context) error {
	cp := l.Machine(l.Spec.controlPlane().Name)
	if err := cp.startDaemon(ctx, tools.Etcd, l.tools[tools.Etcd],
		"--name=lab",
		"--data-dir="+l.path("etcd"),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=lab=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // the data is not worth a disk's time
		"--log-level=warn",
	); err != nil {
		return err
	}
	if err := cp.startDaemon(ctx, tools.KubeAPIServer, l.tools[tools.KubeAPIServer],
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0",
		fmt.Sprintf("--secure-port=%d", apiPort),
		// What the kubernetes Service leads to. Pods elsewhere reach it
		// through the mesh or not at all.
		"--advertise-address="+cp.Addr.String(),
		"--service-cluster-ip-range="+l.Spec.ServiceNetwork.String(),
		"--authorization-mode=RBAC",
		"--token-auth-file="+l.path("pki", "tokens.csv"),
		"--cert-dir="+l.path("pki"),
		"--tls-cert-file="+l.path("pki", "apiserver.crt"),
		"--tls-private-key-file="+l.path("pki", "apiserver.key"),
		"--service-account-key-file="+l.path("pki", "sa.key"),
		"--service-account-signing-key-file="+l.path("pki", "sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		// Pods of the lab have no account of their own.
		"--disable-admission-plugins=ServiceAccount",
		"--audit-policy-file="+l.path("audit-policy.yaml"),
		"--audit-log-path="+l.path("log", "audit.log"),
		"--audit-log-mode=batch",
		"--audit-log-batch-max-wait=200ms",
	); err != nil {
		return err
	}
	if err := l.waitForAPI(ctx, 3*time.Minute); err != nil {
		return err
	}
	if err := cp.startDaemon(ctx, tools.KubeControllerManager, l.tools[tools.KubeControllerManager],
		"--kubeconfig="+l.Kubeconfig("controller-manager"),
		"--controllers=node-ipam-controller,node-lifecycle-controller,endpointslice-controller,endpointslice-mirroring-controller",
		"--allocate-node-cidrs",
		"--cluster-cidr="+l.Spec.PodNetwork.String(),
		"--service-cluster-ip-range="+l.Spec.ServiceNetwork.String(),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--cert-dir="+l.path("pki", "controller-manager"),
	); err != nil {
		return err
	}
	return l.applyManifests(ctx)
}

// waitForAPI waits until the API server is ready and has made the namespaces
// that it makes by itself, which it does some time later.
func (l *Lab) waitForAPI(ctx context.Context, limit time.Duration) error {
	client, err := l.Client("admin")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	if poll(ctx, 100*time.Millisecond, func() bool {
		if _, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw(); last != nil {
			return false
		}
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, corev1.NamespaceNodeLease} {
			if _, last = client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); last != nil {
				return false
			}
		}
		return true
	}) != nil {
		return fmt.Errorf("the API server is not ready after %s: %w\nits log ends:\n%s", limit, last,
			logTail(l.logFile(l.Spec.controlPlane().Name, tools.KubeAPIServer), 10))
	}
	return nil
}

// applyManifests applies the product's own manifests as far as they concern
// the API, and what RBAC needs for the daemons of the lab.
func (l *Lab) applyManifests(ctx context.Context) error {
	root, err := tools.SourceRoot()
	if err != nil {
		return err
	}
	files := []string{l.path("manifests", "lab.yaml")}
	if err := os.MkdirAll(filepath.Dir(files[0]), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(files[0], []byte(labManifest), 0o644); err != nil {
		return err
	}
	for _, name := range []string{"crds.yaml", cmp.Or(l.Spec.Manifest, "rbac.yaml")} {
		files = append(files, filepath.Join(root, "manifests", name))
	}
	if l.Spec.CNI.hasCilium() { // whose operator would do it
		files = append(files, l.tools[tools.CiliumCRDs])
	}
	args := []string{"apply", "--server-side", "--force-conflicts", "--recursive", "--filename=" + strings.Join(files, ",")}
	_, err = l.Kubectl(ctx, args...)
	return err
}

// Kubectl runs kubectl on the control plane's host, as admin.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	return l.Machine(l.Spec.controlPlane().Name).Exec(ctx, l.kubectlArgs(args)...)
}

func (l *Lab) kubectlArgs(args []string) []string {
	return append([]string{l.tools[tools.Kubectl], "--kubeconfig=" + l.Kubeconfig("admin")}, args...)
}

// BecomeKubectl replaces the running program by kubectl.
func (l *Lab) BecomeKubectl(args ...string) error {
	return l.Machine(l.Spec.controlPlane().Name).Become(l.kubectlArgs(args)...)
}

// BecomeKgctl replaces the running program by a kgctl that reads this cluster.
func (l *Lab) BecomeKgctl(program string, args ...string) error {
	argv := append([]string{program, "--kubeconfig=" + l.Kubeconfig("admin")}, args...)
	return l.Machine(l.Spec.controlPlane().Name).Become(argv...)
}

// labManifest gives the daemons of the lab the permissions that their own
// manifests give them in a cluster.
const labManifest = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: flannel}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flannel}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flannel}
subjects:
- {kind: ServiceAccount, name: flannel, namespace: kube-flannel}
`
