package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

// With Spec.Manifest the agents are what a manifest of the product makes of them:
// this file stands in for the DaemonSet controller and the kubelets. It takes pods
// from the API server as they were stored there and starts their containers with
// the arguments, environment, mounts, capabilities and token that they say.

// daemonSets are those of the product, by the lab's names for what they run.
var daemonSets = map[string]string{agentDaemon: "kilo", SidecarDaemon: "kilo-wireguard"}

// accountDir is where Kubernetes puts a pod's token.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// hasDaemonSet tells whether the manifest has something to run by that name.
func (l *Lab) hasDaemonSet(ctx context.Context, daemon string) (bool, error) {
	_, err := l.daemonSet(ctx, daemon)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (l *Lab) daemonSet(ctx context.Context, daemon string) (*appsv1.DaemonSet, error) {
	client, err := l.Client("admin")
	if err != nil {
		return nil, err
	}
	return client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, daemonSets[daemon], metav1.GetOptions{})
}

// startFromManifest starts a DaemonSet's container on the machine. flags come
// after its own arguments.
func (m *Machine) startFromManifest(ctx context.Context, daemon string, flags ...string) error {
	spec, err := m.container(ctx, daemon)
	if err != nil {
		return fmt.Errorf("node %s: %w", m.Name, err)
	}
	spec.Args = append(spec.Args, flags...)
	path, err := m.writeContainer(daemon, spec)
	if err != nil {
		return err
	}
	return m.startDaemonAs(ctx, daemon, spec.Binary, nil, m.lab.path("bin", "kilolab"), "container", path)
}

// ExecAgent runs a command in a container like the agent's, as kubectl exec does,
// and returns its output.
func (m *Machine) ExecAgent(ctx context.Context, argv ...string) (string, error) {
	spec, err := m.container(ctx, agentDaemon)
	if err != nil {
		return "", fmt.Errorf("node %s: %w", m.Name, err)
	}
	spec.Args = append([]string{filepath.Join(filepath.Dir(imageBinary), argv[0])}, argv[1:]...)
	spec.Root += "-exec"
	path, err := m.writeContainer("exec", spec)
	if err != nil {
		return "", err
	}
	return m.Exec(ctx, m.lab.path("bin", "kilolab"), "container", path)
}

// uninstallFromManifest does what kilo-uninstall.yaml does on this machine.
func (m *Machine) uninstallFromManifest(ctx context.Context) error {
	root, err := tools.SourceRoot()
	if err != nil {
		return err
	}
	if _, err := m.lab.Kubectl(ctx, "apply", "--server-side", "--filename="+filepath.Join(root, "manifests", "kilo-uninstall.yaml")); err != nil {
		return err
	}
	client, err := m.lab.Client("admin")
	if err != nil {
		return err
	}
	ds, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "kilo-uninstall", metav1.GetOptions{})
	if err != nil {
		return err
	}
	spec, err := m.containerOf(ctx, "uninstall", ds)
	if err != nil {
		return err
	}
	path, err := m.writeContainer("uninstall", spec)
	if err != nil {
		return err
	}
	_, err = m.Exec(ctx, m.lab.path("bin", "kilolab"), "container", path)
	return err
}

func (m *Machine) writeContainer(name string, spec containerSpec) (path string, err error) {
	path = m.lab.path("containers", m.Name, name+".json")
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, text, 0o600)
}

// container is what the kubelet would tell the runtime of a DaemonSet's only
// container.
func (m *Machine) container(ctx context.Context, daemon string) (containerSpec, error) {
	ds, err := m.lab.daemonSet(ctx, daemon)
	if err != nil {
		return containerSpec{}, err
	}
	return m.containerOf(ctx, daemon, ds)
}

// containerOf is container for any DaemonSet: its init container, where it has one,
// is what works.
func (m *Machine) containerOf(ctx context.Context, name string, ds *appsv1.DaemonSet) (containerSpec, error) {
	client, err := m.lab.Client("kubelet")
	if err != nil {
		return containerSpec{}, err
	}
	pod, err := m.podOf(ctx, client, ds)
	if err != nil {
		return containerSpec{}, err
	}
	if len(pod.Spec.Containers) != 1 || !pod.Spec.HostNetwork {
		return containerSpec{}, fmt.Errorf("DaemonSet %s: want one container on the node's network", ds.Name)
	}
	c := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)[0]
	dir := m.lab.path("containers", m.Name)
	out := containerSpec{Root: filepath.Join(dir, name), Binary: m.lab.agentBinary()}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return containerSpec{}, err
	}

	s := c.SecurityContext
	if s == nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Privileged != nil && *s.Privileged {
		return containerSpec{}, fmt.Errorf("DaemonSet %s: the lab's containers have a read-only root and no capabilities but those added", ds.Name)
	}
	for _, add := range s.Capabilities.Add {
		out.Capabilities = append(out.Capabilities, string(add))
	}

	variables, err := m.environment(ctx, client, pod, c.Env)
	if err != nil {
		return containerSpec{}, err
	}
	for name, value := range variables {
		out.Env = append(out.Env, name+"="+value)
	}
	slices.Sort(out.Env)
	argv := append(slices.Clone(c.Command), c.Args...)
	if len(argv) == 0 || argv[0] != "kg" {
		return containerSpec{}, fmt.Errorf("DaemonSet %s runs %q: the image holds kg", ds.Name, argv)
	}
	argv[0] = imageBinary
	for _, arg := range argv {
		out.Args = append(out.Args, expand(arg, variables))
	}

	for _, mount := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		source, kind, err := m.volume(ctx, client, &pod.Spec.Volumes[i])
		if err != nil {
			return containerSpec{}, err
		}
		out.Mounts = append(out.Mounts, containerDir{Source: source, Target: mount.MountPath, ReadOnly: mount.ReadOnly, Type: kind})
	}
	if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
		source, err := m.account(ctx, client, pod)
		if err != nil {
			return containerSpec{}, err
		}
		out.Mounts = append(out.Mounts, containerDir{Source: source, Target: accountDir, ReadOnly: true})
	}
	return out, nil
}

// podOf is the pod that the DaemonSet controller makes for this node.
func (m *Machine) podOf(ctx context.Context, client kubernetes.Interface, ds *appsv1.DaemonSet) (*corev1.Pod, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: ds.Name + "-" + m.Name, Namespace: ds.Namespace, Labels: ds.Spec.Template.Labels, Annotations: ds.Spec.Template.Annotations},
		Spec:       ds.Spec.Template.Spec,
	}
	pod.Spec.NodeName = m.Name
	made, err := client.CoreV1().Pods(ds.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return client.CoreV1().Pods(ds.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	}
	return made, err
}

// environment is the container's, with what every pod is given.
func (m *Machine) environment(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, env []corev1.EnvVar) (map[string]string, error) {
	service, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{
		"PATH": "/usr/bin", "HOME": "/",
		"KUBERNETES_SERVICE_HOST": service.Spec.ClusterIP,
		"KUBERNETES_SERVICE_PORT": strconv.Itoa(int(service.Spec.Ports[0].Port)),
	}
	for _, e := range env {
		if e.ValueFrom == nil {
			out[e.Name] = expand(e.Value, out)
			continue
		}
		switch field := e.ValueFrom.FieldRef; {
		case field != nil && field.FieldPath == "spec.nodeName":
			out[e.Name] = pod.Spec.NodeName
		case field != nil && field.FieldPath == "metadata.namespace":
			out[e.Name] = pod.Namespace
		default:
			return nil, fmt.Errorf("environment variable %s: the lab's kubelet does not know where it comes from", e.Name)
		}
	}
	return out, nil
}

var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand puts variables in for $(NAME), as a kubelet does.
func expand(text string, variables map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		if value, ok := variables[ref[2:len(ref)-1]]; ok {
			return value
		}
		return ref
	})
}

// volume is where a volume lies, as the machine sees it.
func (m *Machine) volume(ctx context.Context, client kubernetes.Interface, v *corev1.Volume) (source, kind string, err error) {
	switch {
	case v.HostPath != nil && v.HostPath.Type != nil:
		return v.HostPath.Path, string(*v.HostPath.Type), nil
	case v.HostPath != nil:
		return v.HostPath.Path, "", nil
	case v.ConfigMap != nil:
		dir := m.lab.path("containers", m.Name, v.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", "", err
		}
		config, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && v.ConfigMap.Optional != nil && *v.ConfigMap.Optional {
			return dir, "", nil
		}
		if err != nil {
			return "", "", err
		}
		for _, item := range v.ConfigMap.Items {
			if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(config.Data[item.Key]), 0o600); err != nil {
				return "", "", err
			}
		}
		return dir, "", nil
	}
	return "", "", fmt.Errorf("volume %s: the lab's kubelet does not know its kind", v.Name)
}

// account is the directory with the pod's token, as the TokenRequest API gives it,
// and what belongs to it.
func (m *Machine) account(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) (string, error) {
	day := int64(24 * 60 * 60) // nobody here renews it
	token, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &day,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of pod %s: %w", pod.Name, err)
	}
	authority, err := os.ReadFile(m.lab.path("pki", "ca.crt"))
	if err != nil {
		return "", err
	}
	dir := m.lab.path("containers", m.Name, "account")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for name, text := range map[string]string{"token": token.Status.Token, "ca.crt": string(authority), "namespace": pod.Namespace} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// KubeProxyConfig is the kubeconfig that kubeadm and others leave in a ConfigMap for
// pods: the server where nodes reach it, and the pod's own token.
func (l *Lab) KubeProxyConfig() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    certificate-authority: %[2]s/ca.crt
    server: %[1]s
contexts:
- name: default
  context: {cluster: default, user: default}
current-context: default
users:
- name: default
  user: {tokenFile: %[2]s/token}
`, l.apiServer(), accountDir)
}

// forwardDaemon is the name, among a machine's daemons, of StartForward's.
const forwardDaemon = "forward"

// StartForward gives the machine a way to the API server on its own loopback, as
// k3s does.
func (m *Machine) StartForward(ctx context.Context, port int) error {
	return m.startDaemon(ctx, forwardDaemon, m.lab.path("bin", "kilolab"), "forward",
		fmt.Sprintf("127.0.0.1:%d", port), net.JoinHostPort(m.lab.Spec.controlPlane().PublicIP.String(), strconv.Itoa(apiPort)))
}
