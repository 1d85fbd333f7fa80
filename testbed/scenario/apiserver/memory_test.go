package apiserver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/model"
)

const (
	many = 1000
	// mostMemory is what of the agent's 60 MiB its view of the cluster may take,
	// program text and runtime included.
	mostMemory = 40 << 20
)

// A thousand Nodes as kubelets report them, some ten kilobytes each.
func TestMemoryAtAThousandNodes(t *testing.T) {
	s := start(t)
	s.apply("rbac.yaml")
	s.apply("crds.yaml")
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for i := worker; i < many; i += 8 {
				s.node(t.Context(), fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250), func(n *corev1.Node) { likeInLife(n, i) })
			}
		})
	}
	workers.Wait()
	if t.Failed() {
		return
	}
	watcher := filepath.Join(s.dir, "watcher")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", watcher, "./watcher").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	cmd := exec.Command(watcher, s.config("").Host, agentToken, "n0", strconv.Itoa(many))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close(); kill(cmd) }()
	if n, err := stdout.Read(make([]byte, 16)); err != nil || n == 0 {
		t.Fatalf("the measured process said nothing: %v", err)
	}
	time.Sleep(5 * time.Second) // what the first list left behind is collected
	now, peak := memory(t, cmd.Process.Pid, "VmRSS"), memory(t, cmd.Process.Pid, "VmHWM")
	t.Logf("at %d nodes: %d MiB resident, %d MiB at most", many, now>>20, peak>>20)
	if peak > mostMemory {
		t.Errorf("%d MiB resident at most, want less than %d", peak>>20, mostMemory>>20)
	}
}

// memory reads a line of /proc/PID/status, in bytes.
func memory(t *testing.T, pid int, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in %s", name, text)
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// likeInLife gives a Node what kubelets, clouds and an agent of ours put there.
func likeInLife(n *corev1.Node, i int) {
	n.Labels = map[string]string{"topology.kubernetes.io/region": fmt.Sprintf("r%d", i%20), "kubernetes.io/os": "linux", "kubernetes.io/hostname": n.Name}
	n.Annotations = map[string]string{
		"kilo.squat.ai/key":            keyOf(i),
		"kilo.squat.ai/mesh-location":  fmt.Sprintf("r%d", i%20),
		"kilo.squat.ai/internal-ip":    fmt.Sprintf("10.0.%d.%d/16", i/250, 1+i%250),
		"kilo.squat.ai/pod-prefixes":   fmt.Sprintf("10.%d.%d.0/24", 100+i/256, i%256),
		"kilo.squat.ai/wireguard-ip":   fmt.Sprintf("10.4.%d.%d/32", i/250, 1+i%250),
		"kilo.squat.ai/granularity":    "location",
		"node.alpha.kubernetes.io/ttl": "0",
	}
	for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(), Reason: "KubeletHas", Message: "kubelet has enough of everything"})
	}
	for image := range 50 {
		digest := strings.Repeat(fmt.Sprintf("%02x", image), 32)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example.com/team/image-%d@sha256:%s", image, digest), fmt.Sprintf("registry.example.com/team/image-%d:v1.2.3", image)},
			SizeBytes: 12345678,
		})
	}
}

func keyOf(i int) string {
	var k [32]byte
	k[0], k[1], k[31] = byte(i), byte(i>>8), 1
	return model.Key(k).String()
}
