package crowd

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

// Object is the node as an API server has it: with what its agent and Flannel
// have written, and of the size that kubelets make Nodes.
func Object(n *model.Node) *corev1.Node {
	pods := n.PodPrefixes[0].String()
	address := n.InternalIPs[0].Addr()
	four := address.As4()
	annotations := map[string]string{
		api.Key: n.Key.String(), api.MeshLocation: n.Location, api.MirroredLocation: n.Location,
		api.InternalIP: n.InternalIPs[0].String(), api.PodPrefixes: pods, api.Granularity: string(n.Granularity),
		api.TunnelMTU: strconv.Itoa(n.TunnelMTU), api.Tunnel: n.Tunnel,
		"flannel.alpha.coreos.com/backend-data":                  fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:%02x:%02x:%02x:%02x"}`, four[0], four[1], four[2], four[3]),
		"flannel.alpha.coreos.com/backend-type":                  "vxlan",
		"flannel.alpha.coreos.com/kube-subnet-manager":           "true",
		"flannel.alpha.coreos.com/public-ip":                     address.String(),
		"volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}
	if n.Epoch > 0 {
		annotations[api.Epoch] = strconv.FormatUint(n.Epoch, 10)
		annotations[api.Endpoint] = n.Endpoint.String()
		annotations[api.WireGuardIP] = n.WireGuardIPs[0].String() + "/32"
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, Annotations: annotations,
			Labels: map[string]string{
				corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelTopologyRegion: n.Location, corev1.LabelTopologyZone: n.Location + "-a",
				corev1.LabelInstanceTypeStable: "standard-4", api.Location: n.Location, api.Tunnel: n.Tunnel,
			},
		},
		Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}, ProviderID: "crowd://" + n.Name},
	}
}

// Status is the node's, as its kubelet reports it, thirty images included.
func Status(n *model.Node) corev1.NodeStatus {
	now := metav1.Now()
	condition := func(t corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	s := corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: n.InternalIPs[0].Addr().String()},
			{Type: corev1.NodeHostName, Address: n.Name},
		},
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
			condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
			condition(api.MeshCondition, corev1.ConditionTrue, "Member", "reaches other locations through the gateway of location "+n.Location),
		},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: n.UID, SystemUUID: n.UID, BootID: n.UID, KernelVersion: "6.1.0", OSImage: "Debian GNU/Linux 12",
			ContainerRuntimeVersion: "containerd://2.1.0", KubeletVersion: "v1.35.4", OperatingSystem: "linux", Architecture: "amd64",
		},
	}
	for i := range 30 {
		s.Images = append(s.Images, corev1.ContainerImage{
			Names: []string{
				fmt.Sprintf("registry.example.org/team-%d/service-%d@sha256:%064x", i%5, i, i),
				fmt.Sprintf("registry.example.org/team-%d/service-%d:v1.%d.0", i%5, i, i),
			},
			SizeBytes: int64(i+1) << 20,
		})
	}
	return s
}
