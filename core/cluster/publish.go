package cluster

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/model"
)

// Patch returns the JSON merge patch that makes a Node say what want says, or
// nil when it already does. It names what differs and nothing else; a fact that
// is empty loses its annotation. What people wrote is never touched, and
// neither is a label kilo.squat.ai/location that is not the agent's own.
//
// It is pure.
func Patch(node *corev1.Node, want model.Published) []byte {
	annotations := outputs(want)
	labels := make(map[string]string)
	if want.Tunnel != "" {
		labels[api.Tunnel] = want.Tunnel
	}
	if want.Location != "" && isLabelValue(want.Location) && (ownLabel(node) || !hasLabel(node)) {
		labels[api.Location] = want.Location
		annotations[api.MirroredLocation] = want.Location
	}
	return mergePatch(node, annotations, labels)
}

// ClearPatch returns the JSON merge patch that takes everything off a Node that
// an agent wrote, or nil when nothing is there. It is pure.
func ClearPatch(node *corev1.Node) []byte { return mergePatch(node, nil, nil) }

// outputs are the annotations that want comes to, less the mirrored location.
func outputs(want model.Published) map[string]string {
	out := map[string]string{
		api.Endpoint:            want.Endpoint.String(),
		api.InternalIP:          join(want.InternalIPs),
		api.WireGuardIP:         join(hostPrefixes(want.WireGuardIPs)),
		api.Granularity:         string(want.Granularity),
		api.DiscoveredEndpoints: formatDiscovered(want.Discovered),
		api.PodPrefixes:         join(want.PodPrefixes),
		api.Asked:               want.Asked,
		api.Tunnel:              want.Tunnel,
		api.Silent:              strings.Join(want.Silent, ","),
	}
	if want.Epoch != 0 {
		out[api.Epoch] = strconv.FormatUint(want.Epoch, 10)
	}
	if want.Slot > 0 {
		out[api.Slot] = strconv.Itoa(want.Slot)
	}
	if want.TunnelMTU > 0 {
		out[api.TunnelMTU] = strconv.Itoa(want.TunnelMTU)
	}
	if want.NodesOnly {
		out[api.NodesOnly] = "true"
	}
	flags := want.FromFlags
	if flags.Leader {
		out[api.FlagLeader] = "true"
	}
	if flags.ForcedEndpoint {
		out[api.FlagForcedEndpoint] = "true"
	}
	if flags.Keepalive > 0 {
		out[api.FlagKeepalive] = strconv.Itoa(int(flags.Keepalive / time.Second))
	}
	out[api.FlagAllowedLocationIPs] = join(flags.AllowedLocationIPs)
	for name, value := range out {
		if value == "" {
			delete(out, name)
		}
	}
	if !want.Key.IsZero() {
		out[api.Key] = want.Key.String()
		out[api.MeshLocation] = want.Location // "" is a location too
	}
	return out
}

func hostPrefixes(addrs []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		out[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return out
}

// mergePatch compares all that an agent may write with what is wanted of it.
// Names that are not wanted are to go.
func mergePatch(node *corev1.Node, annotations, labels map[string]string) []byte {
	changedAnnotations := changes(node.Annotations, annotations, api.Outputs())
	ours := []string{api.Tunnel}
	if ownLabel(node) || !hasLabel(node) {
		ours = append(ours, api.Location)
	}
	changedLabels := changes(node.Labels, labels, ours)
	if len(changedAnnotations) == 0 && len(changedLabels) == 0 {
		return nil
	}
	metadata := make(map[string]any)
	if len(changedAnnotations) > 0 {
		metadata["annotations"] = changedAnnotations
	}
	if len(changedLabels) > 0 {
		metadata["labels"] = changedLabels
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		panic(err) // strings and nulls always have a JSON form
	}
	return body
}

// changes tells by name how to get from have to want: a value, or null.
func changes(have, want map[string]string, names []string) map[string]*string {
	out := make(map[string]*string)
	for _, name := range names {
		has, there := have[name]
		wanted, wants := want[name]
		switch {
		case wants && (!there || has != wanted):
			out[name] = &wanted
		case !wants && there:
			out[name] = nil
		}
	}
	return out
}

func hasLabel(node *corev1.Node) bool {
	_, ok := node.Labels[api.Location]
	return ok
}

var labelValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// isLabelValue tells whether Kubernetes takes s as the value of a label; ""
// would be one too, but says nothing.
func isLabelValue(s string) bool { return labelValue.MatchString(s) }
