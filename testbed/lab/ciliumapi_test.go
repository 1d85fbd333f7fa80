package lab

import (
	"net/netip"
	"os"
	"slices"
	"testing"
)

// An agent's real answer: one pod, and the host.
func TestParseCiliumEndpoints(t *testing.T) {
	text, err := os.ReadFile("testdata/cilium-endpoint.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseCiliumEndpoints(string(text))
	if err != nil || len(got) != 2 {
		t.Fatalf("%d endpoints, want 2 (%v)", len(got), err)
	}
	pod, host := got[0], got[1]
	if pod.ID != 325 || pod.State != "ready" || pod.Addr != netip.MustParseAddr("10.244.6.223") ||
		pod.Device != "lxce5facdceceda" || pod.Identity != 5474 || !slices.Contains(pod.Labels, "k8s:name=pod-a1") {
		t.Errorf("the pod: %+v", pod)
	}
	if host.ID != 2217 || host.State != "ready" || host.Addr.IsValid() || host.Device != "cilium_host" || host.Identity != 1 {
		t.Errorf("the host: %+v", host)
	}
}
