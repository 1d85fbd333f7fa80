package flannel

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kilo-overlay/kilo/core/adapter"
)

// The backends that are served, in Flannel's words.
const (
	backendVXLAN  = "vxlan"
	backendHostGW = "host-gw"
)

// defaultVNI is what Flannel takes on Linux where net-conf.json names none.
const defaultVNI = 1

// maxVNI is the largest number that a VXLAN header holds.
const maxVNI = 1<<24 - 1

// The annotations that Flannel writes to its Node. Flannel can be told
// another prefix; nobody we know of does.
const (
	annotationPrefix    = "flannel.alpha.coreos.com/"
	annotationManaged   = annotationPrefix + "kube-subnet-manager"
	annotationBackend   = annotationPrefix + "backend-type"
	annotationData      = annotationPrefix + "backend-data"
	annotationV6Data    = annotationPrefix + "backend-v6-data"
	annotationPublicIP  = annotationPrefix + "public-ip"
	annotationPublicIP6 = annotationPrefix + "public-ipv6"
)

// record is what Flannel says about its backend on this node.
type record struct {
	// Backend is the backend's name; "" while not known.
	Backend string
	// VNI is the VXLAN network identifier; HasVNI tells that it is known.
	VNI    uint32
	HasVNI bool
	// PublicIPs are the addresses at which other nodes' Flannel reaches this one.
	PublicIPs []netip.Addr
}

// Managed tells whether a Node's annotations say that Flannel runs with the
// Kubernetes API as its store.
func Managed(annotations map[string]string) bool {
	return annotations[annotationManaged] == "true" && annotations[annotationBackend] != ""
}

// parseAnnotations reads the annotations of a Node that Flannel manages. What
// is malformed is left out and named in the second result, a sentence each.
func parseAnnotations(annotations map[string]string) (record, []string) {
	var bad []string
	r := record{Backend: annotations[annotationBackend]}
	if r.Backend == backendVXLAN {
		name := annotationData
		data, ok := annotations[name]
		if !ok || data == "null" { // IPv6 only
			name = annotationV6Data
			data, ok = annotations[name]
		}
		if ok {
			// Flannel always writes the VNI, so there is no default here.
			if err := r.setVNI([]byte(data), -1); err != nil {
				bad = append(bad, fmt.Sprintf("annotation %s: %v; Flannel rewrites it when it restarts", name, err))
			}
		}
	}
	for _, name := range []string{annotationPublicIP, annotationPublicIP6} {
		s, ok := annotations[name]
		if !ok {
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			bad = append(bad, fmt.Sprintf("annotation %s=%q is no IP address; Flannel rewrites it when it restarts", name, s))
			continue
		}
		r.PublicIPs = append(r.PublicIPs, a.Unmap())
	}
	return r, bad
}

// setVNI takes the VNI from a JSON object, or the default where it names
// none; a negative default means that it has to be there.
func (r *record) setVNI(data []byte, otherwise int64) error {
	var v struct{ VNI *int64 }
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("want a JSON object with VNI: %w", err)
	}
	vni := otherwise
	if v.VNI != nil {
		vni = *v.VNI
	}
	if vni < 0 || vni > maxVNI {
		return fmt.Errorf("VNI: want a number from 0 to %d", maxVNI)
	}
	r.VNI, r.HasVNI = uint32(vni), true
	return nil
}

// supported returns nil for a backend whose next hops can be copied, and an
// *adapter.Unsupported that says what to do for any other.
func supported(backend string) error {
	var do string
	switch backend {
	case backendVXLAN, backendHostGW:
		return nil
	case "wireguard", "ipsec":
		do = "locations are joined by kg's own WireGuard tunnels, inside a location use the backend vxlan or host-gw" +
			" (k3s: --flannel-backend=vxlan)"
	case "alloc", "tencent-vpc", "ali-vpc", "aws-vpc", "gce":
		do = "it leaves routing to the cloud, which knows nothing of other locations; use the backend vxlan"
	case "extension":
		do = "its routes are made by commands of your own; use the backend vxlan or host-gw"
	default: // udp, ipip and what comes later
		do = "use the backend vxlan or host-gw"
	}
	return &adapter.Unsupported{What: fmt.Sprintf("flannel backend %q", backend), Do: do}
}

// vxlanDevice is how Flannel names its VXLAN device of a family.
func vxlanDevice(vni uint32, v4 bool) string {
	if v4 {
		return fmt.Sprintf("flannel.%d", vni)
	}
	return fmt.Sprintf("flannel-v6.%d", vni)
}

// isVXLANDeviceName tells whether Flannel names VXLAN devices like this.
func isVXLANDeviceName(name string) bool {
	return strings.HasPrefix(name, "flannel.") || strings.HasPrefix(name, "flannel-v6.")
}
