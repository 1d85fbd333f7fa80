package apiserver_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kilo-overlay/kilo/testbed/tools"
)

const (
	adminToken, agentToken = "admin-token", "agent-token"
	agentUser              = "system:serviceaccount:kube-system:kilo"
)

// server is etcd and kube-apiserver on this machine's loopback.
type server struct {
	t         *testing.T
	dir, root string
	tools     tools.Paths
	port      int
	args      []string // of kube-apiserver
	api       *exec.Cmd
}

// start brings a server up that ends with the test.
func start(t *testing.T) *server {
	t.Helper()
	paths, err := tools.Ensure(t.Context(), os.Stderr, "kubernetes", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	root, err := tools.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: t.TempDir(), root: root, tools: paths, port: freePort(t)}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	etcdPeers := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	s.daemon("etcd", paths[tools.Etcd],
		"--data-dir="+filepath.Join(s.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+etcdPeers, "--initial-advertise-peer-urls="+etcdPeers,
		"--initial-cluster=default="+etcdPeers)

	s.file("tokens.csv", adminToken+",admin,admin,system:masters\n"+agentToken+","+agentUser+",agent,\"system:authenticated\"\n")
	s.file("audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n")
	s.file("sa.key", signingKey(t))
	s.args = []string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port),
		"--advertise-address=192.0.2.77", "--service-cluster-ip-range=10.96.0.0/12",
		"--authorization-mode=RBAC", "--token-auth-file=" + filepath.Join(s.dir, "tokens.csv"),
		"--cert-dir=" + filepath.Join(s.dir, "pki"),
		"--service-account-key-file=" + filepath.Join(s.dir, "sa.key"),
		"--service-account-signing-key-file=" + filepath.Join(s.dir, "sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--audit-policy-file=" + filepath.Join(s.dir, "audit.yaml"), "--audit-log-path=" + s.auditLog(),
	}
	s.up()
	return s
}

// signingKey is what the API server signs service account tokens with.
func signingKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *server) file(name, content string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) auditLog() string { return filepath.Join(s.dir, "audit.log") }

// daemon starts a program that ends with the test.
func (s *server) daemon(name, path string, args ...string) *exec.Cmd {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// up starts the API server and waits until it is ready; down kills it.
func (s *server) up() {
	s.t.Helper()
	s.api = s.daemon("kube-apiserver", s.tools[tools.KubeAPIServer], s.args...)
	var last error
	s.wait(2*time.Minute, "the API server to be ready", func() (bool, string) {
		_, last = s.admin().Discovery().RESTClient().Get().AbsPath("/readyz").Do(s.t.Context()).Raw()
		return last == nil, fmt.Sprint(last)
	})
	// The API server makes these on its own, a moment after it is ready.
	for _, namespace := range []string{"default", "kube-system"} {
		s.wait(time.Minute, "the namespace "+namespace, func() (bool, string) {
			_, last = s.admin().CoreV1().Namespaces().Get(s.t.Context(), namespace, metav1.GetOptions{})
			return last == nil, fmt.Sprint(last)
		})
	}
}

func (s *server) down() { kill(s.api) }

func (s *server) config(token string) *rest.Config {
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 500, Burst: 500,
	}
}

func (s *server) admin() *kubernetes.Clientset {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(s.config(adminToken))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// kubectl runs kubectl as admin.
func (s *server) kubectl(stdin string, args ...string) string {
	s.t.Helper()
	args = append([]string{
		"--server=" + s.config("").Host, "--token=" + adminToken, "--insecure-skip-tls-verify",
		"--cache-dir=" + filepath.Join(s.dir, "cache"), "--kubeconfig=/dev/null",
	}, args...)
	cmd := exec.CommandContext(s.t.Context(), s.tools[tools.Kubectl], args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("kubectl %v: %v: %s", args[5:], err, out)
	}
	return string(out)
}

func (s *server) apply(manifest string) {
	s.t.Helper()
	s.kubectl("", "apply", "--server-side", "--filename="+filepath.Join(s.root, "manifests", manifest))
}

// node makes a Node with its status.
func (s *server) node(ctx context.Context, name, internal string, change func(*corev1.Node)) *corev1.Node {
	s.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: internal}, {Type: corev1.NodeHostName, Address: name}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
	}
	if change != nil {
		change(n)
	}
	status := n.Status
	n, err := s.admin().CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err == nil {
		n.Status = status
		n, err = s.admin().CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *server) get(name string) *corev1.Node {
	s.t.Helper()
	n, err := s.admin().CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// wait polls until done says so, or fails with what it said last.
func (s *server) wait(limit time.Duration, what string, done func() (bool, string)) {
	s.t.Helper()
	var last string
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var ok bool
		if ok, last = done(); ok {
			return
		}
	}
	s.t.Fatalf("waited %v for %s: %s", limit, what, last)
}

// request is one line of the audit log.
type request struct {
	Verb, RequestURI, UserAgent string
	User                        struct{ Username string }
}

// requests returns what the agent's user asked of the API server so far.
func (s *server) requests() (out []request) {
	s.t.Helper()
	f, err := os.Open(s.auditLog())
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.User.Username == agentUser {
			out = append(out, r)
		}
	}
	return out
}
