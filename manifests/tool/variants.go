package main

// values are the chart's.
type values = map[string]any

// variant is one manifest: the chart with values of its own.
type variant struct {
	File    string // below manifests/
	Comment string // what its reader should know; lines without a '#'
	Values  values
	// Only names templates; nil: all.
	Only []string
}

// Nodes of these distributions reach an API server without the mesh like this.
func kubeadm() values {
	return values{"kubeconfigConfigMap": values{"name": "kube-proxy", "key": "kubeconfig.conf"}}
}

func inClusterConfigMap() values {
	return values{"kubeconfigConfigMap": values{"name": "kubeconfig-in-cluster", "key": "kubeconfig"}}
}

// k3s has an API server, or a way to all of them, on every node's loopback, and
// keeps Flannel's configuration in a place of its own.
func k3s() values {
	return values{
		"apiServer":      values{"host": "127.0.0.1", "port": 6444},
		"flannelNetConf": "/var/lib/rancher/k3s/agent/etc/flannel/net-conf.json",
	}
}

const (
	kubeadmWords = `The agents ask the API server that kube-proxy asks, by the kubeconfig in the
ConfigMap kube-proxy, with their own service account. In a cluster without that
ConfigMap they ask the Service kubernetes.`
	inClusterWords = `The agents ask the API server that the ConfigMap kubeconfig-in-cluster names,
with their own service account, or where there is none the Service kubernetes.`
	k3sWords = `The agents ask the API server by k3s' own way to it, port 6444 on every node's
loopback, which does not depend on the mesh.`
	anyWords = `The agents ask the API server by the Service kubernetes. Where nodes of some
location do not reach the address behind it without the mesh, use the manifest of
your distribution, or the chart's value apiServer.`
)

// variants are the manifests that there are.
func variants() []variant {
	out := []variant{
		{
			File:    "rbac.yaml",
			Comment: "The service account of the agents, and what it may do.",
			Only:    []string{"rbac.yaml"},
		},
		{
			File:    "policy.yaml",
			Comment: "What agents may write, where RBAC alone would let them write more.",
			Only:    []string{"policy.yaml"},
		},
		{
			File:    "podmonitor.yaml",
			Comment: "For the Prometheus operator: where the agents' metrics are.",
			Values:  values{"podMonitor": values{"enabled": true}},
			Only:    []string{"podmonitor.yaml"},
		},
		{
			File: "alerts.yaml",
			Comment: `For the Prometheus operator: alerts. Without it, what is below spec: is a file of
rules as Prometheus reads it. docs/grafana/kilo.json is a dashboard.`,
			Values: values{"prometheusRule": values{"enabled": true}},
			Only:   []string{"prometheusrule.yaml"},
		},
	}
	for _, d := range []struct {
		name, words string
		values      func() values
		adapters    []string
	}{
		{"kilo", "For any cluster.\n" + anyWords, func() values { return values{} }, []string{"flannel", "cilium"}},
		{"kilo-kubeadm", "For clusters made with kubeadm.\n" + kubeadmWords, kubeadm, []string{"", "flannel", "cilium"}},
		{"kilo-k3s", "For k3s.\n" + k3sWords, k3s, []string{"", "flannel", "cilium"}},
		{"kilo-bootkube", "For clusters made with bootkube.\n" + inClusterWords, inClusterConfigMap, []string{"", "flannel"}},
		{"kilo-typhoon", "For Typhoon.\n" + inClusterWords, inClusterConfigMap, []string{"", "flannel", "cilium"}},
	} {
		for _, adapter := range d.adapters {
			v := variant{File: d.name + ".yaml", Comment: d.words, Values: d.values()}
			if adapter == "" {
				v.Comment += "\nThe agents find out which CNI the node runs."
			} else {
				v.File = d.name + "-" + adapter + ".yaml"
				v.Values["adapter"] = adapter
			}
			if adapter == "cilium" {
				delete(v.Values, "flannelNetConf") // nobody would read it
			}
			out = append(out, v)
		}
	}
	out = append(out, variant{
		File: "kilo-uninstall.yaml",
		Comment: `Takes everything of the mesh off each node. Delete the DaemonSets kilo and
kilo-wireguard first, apply this, wait for "kubectl -n kube-system rollout status
ds/kilo-uninstall", and delete it. Agents with values of their own, a --state-dir say,
are removed by "helm upgrade --reuse-values --set uninstall=true".`,
		Values: values{"uninstall": true, "kubeconfigConfigMap": kubeadm()["kubeconfigConfigMap"]},
		Only:   []string{"uninstall.yaml"},
	})
	heterogeneous := k3s()
	heterogeneous["wireguardDaemonSet"] = values{"enabled": true}
	return append(out, variant{
		File: "kilo-k3s-userspace-heterogeneous.yaml",
		Comment: "For k3s on nodes some of whose kernels have no WireGuard.\n" + k3sWords + `
Every agent takes the kernel's WireGuard where there is one and the built-in device
otherwise, so no node needs a label, and kilo-k3s.yaml would do. What this one adds is
the DaemonSet kilo-wireguard: where the kernel has no WireGuard it carries the packets,
and goes on while agents are upgraded.`,
		Values: heterogeneous,
	})
}
