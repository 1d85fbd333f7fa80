package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"sigs.k8s.io/yaml"
)

const chart = "../" + chartDir

// The manifests in the repository are what the chart renders.
func TestManifestsAreTheChartsOutput(t *testing.T) {
	for _, v := range variants() {
		want, err := v.text(chart)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", v.File))
		if err != nil || string(got) != want {
			t.Errorf("manifests/%s differs from the chart (%v): run \"make manifests\"", v.File, err)
		}
	}
}

// Nothing in manifests/ is made by hand but the definition of Peers, and no image
// is without a version.
func TestEveryManifestIsMade(t *testing.T) {
	made := []string{"crds.yaml"}
	for _, v := range variants() {
		made = append(made, v.File)
	}
	files, err := filepath.Glob("../*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d manifests, error %v", len(files), err)
	}
	for _, file := range files {
		if !slices.Contains(made, filepath.Base(file)) {
			t.Errorf("manifests/%s is made by nobody: add it to variants.go", filepath.Base(file))
		}
		for _, o := range objects(t, read(t, file)) {
			for _, c := range containers(o) {
				image, _ := c["image"].(string)
				if _, tag, ok := strings.Cut(filepath.Base(image), ":"); !ok || tag == "latest" {
					t.Errorf("%s: image %q is not pinned", file, image)
				}
			}
		}
	}
}

func TestLint(t *testing.T) {
	for _, m := range lint.RunAll(chart, nil, "kube-system").Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("%s", m)
		}
	}
}

// What the schema refuses, and in which words: those name the value.
func TestSchemaRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		give values
		says []string
	}{
		{"an unknown value", values{"meshgranularity": "full"}, []string{"meshgranularity"}},
		{"an unknown value inside", values{"image": values{"version": "1"}}, []string{"image", "version"}},
		{"an unknown adapter", values{"adapter": "calico"}, []string{"adapter", "flannel"}},
		{"an unknown granularity", values{"meshGranularity": "node"}, []string{"meshGranularity", "cross"}},
		{"text for a number", values{"port": "51820"}, []string{"port", "integer"}},
		{"no such port", values{"port": 70000}, []string{"port", "70,000"}},
		{"one prefix for a list", values{"serviceCidr": "10.96.0.0/12"}, []string{"serviceCidr", "array"}},
		{"no prefix", values{"internalCidr": []any{"ten"}}, []string{"internalCidr"}},
		{"text for a truth", values{"leader": "yes"}, []string{"leader", "boolean"}},
		{"an endpoint without a port", values{"forceEndpoint": "203.0.113.9"}, []string{"forceEndpoint"}},
		{"a name for an interface with a slash", values{"interface": "a/b"}, []string{"interface"}},
		{"no flag among further ones", values{"extraArgs": []any{"leader"}}, []string{"extraArgs"}},
		{"an update that keeps two at once", values{"updateStrategy": values{"type": "RollingUpdate", "rollingUpdate": values{"maxSurge": 1}}}, []string{"maxSurge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := render(chart, common.ReleaseOptions{Name: "kilo", Namespace: "kube-system"}, c.give)
			if err == nil {
				t.Fatal("it is taken")
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v\ndoes not say %q", err, part)
				}
			}
		})
	}
}

func TestFlagsFromValues(t *testing.T) {
	for _, c := range []struct {
		name string
		give values
		want []string
	}{
		{"nothing said", nil, []string{"--adapter=auto"}},
		{"words, numbers, truths and lists", values{
			"adapter": "flannel", "meshGranularity": "full", "port": 51821, "mtu": "auto", "leader": false,
			"serviceCidr": []any{"10.96.0.0/12", "fd00:96::/112"}, "excludeInterfaces": []any{}, "persistentKeepalive": 0,
		}, []string{
			"--adapter=flannel", "--mesh-granularity=full", "--service-cidr=10.96.0.0/12,fd00:96::/112",
			"--port=51821", "--mtu=auto", "--leader=false", "--persistent-keepalive=0",
		}},
		{"a kubeconfig of others", values{"kubeconfigConfigMap": values{"name": "kube-proxy", "key": "kubeconfig.conf"}},
			[]string{"--kubeconfig=/etc/kubernetes/kubeconfig", "--adapter=auto"}},
		{"a device of its own", values{"wireguardDaemonSet": values{"enabled": true}}, []string{"--adapter=auto", "--create-interface=false"}},
		{"further ones come last", values{"extraArgs": []any{"--location=x"}}, []string{"--adapter=auto", "--location=x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := find(t, rendered(t, c.give), "DaemonSet", "kilo")
			var got []string
			for _, arg := range containers(ds)[0]["args"].([]any) {
				got = append(got, arg.(string))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestWhatValuesBring(t *testing.T) {
	for _, c := range []struct {
		name        string
		give        values
		has, hasNot []string
	}{
		{"as it comes", nil,
			[]string{"kind: CustomResourceDefinition", "helm.sh/resource-policy: keep", "kind: ValidatingAdmissionPolicy", "managed-by: Helm", "image: ghcr.io/kilo-overlay/kilo:", "path: /var/run/cilium", "path: /run/flannel"},
			[]string{"kind: PodMonitor", "name: kilo-wireguard", "privileged", "KUBERNETES_SERVICE_HOST", "/etc/kubernetes"}},
		{"nothing but the agent", values{"crds": values{"install": false}, "rbac": values{"create": false}, "admissionPolicy": values{"enabled": false}},
			[]string{"kind: DaemonSet"}, []string{"CustomResourceDefinition", "ClusterRole", "AdmissionPolicy"}},
		{"Flannel alone", values{"adapter": "flannel"}, []string{"path: /run/flannel"}, []string{"/var/run/cilium"}},
		{"Cilium alone", values{"adapter": "cilium"}, []string{"path: /var/run/cilium"}, []string{"/run/flannel"}},
		{"an image by its digest", values{"image": values{"digest": "sha256:" + strings.Repeat("a", 64), "tag": "x"}}, []string{"image: ghcr.io/kilo-overlay/kilo@sha256:aaaa"}, []string{"kilo:x"}},
		{"the API server's address", values{"apiServer": values{"host": "203.0.113.1"}}, []string{"name: KUBERNETES_SERVICE_HOST", `value: "203.0.113.1"`, `value: "6443"`}, nil},
		{"another address to listen at", values{"listen": "10.0.0.1:9107"}, []string{"host: \"10.0.0.1\"", "containerPort: 9107", "port: 9107"}, []string{"1107\n"}},
		{"every address to listen at", values{"listen": "[::]:1108"}, []string{"host: \"127.0.0.1\"", "port: 1108"}, []string{"1107\n"}},
		{"another state directory", values{"stateDir": "/data/kilo"}, []string{"path: /data/kilo", "mountPath: /data/kilo", "--state-dir=/data/kilo"}, []string{"/var/lib/kilo"}},
		{"the way out", values{"uninstall": true, "stateDir": "/data/kilo", "wireguardDaemonSet": values{"enabled": true}},
			[]string{"name: kilo-uninstall", "command: [kg, uninstall]", "--state-dir=/data/kilo", "ClusterRole"}, []string{"readinessProbe", "name: kilo-wireguard"}},
		{"metrics", values{"podMonitor": values{"enabled": true, "labels": values{"release": "prom"}}}, []string{"kind: PodMonitor", "release: prom"}, nil},
		{"what a flag says, the policy allows", values{"leader": true, "location": "it's here", "allowedLocationIps": []any{"10.9.0.0/16"}, "internalCidr": []any{"10.0.0.0/8"}},
			[]string{`["10.9.0.0/16"]`, `["10.0.0.0/8"]`}, []string{"flag-leader' in variables.set"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := rendered(t, c.give)
			objects(t, text) // it is YAML
			for _, part := range c.has {
				if !strings.Contains(text, part) {
					t.Errorf("%q is missing", part)
				}
			}
			for _, part := range c.hasNot {
				if strings.Contains(text, part) {
					t.Errorf("%q is there", part)
				}
			}
		})
	}
}

// No pod of any manifest has more than it needs.
func TestLeastPrivilege(t *testing.T) {
	pods := 0
	for _, v := range variants() {
		for _, o := range objects(t, read(t, filepath.Join("..", v.File))) {
			for _, c := range containers(o) {
				pods++
				s := c["securityContext"].(values)
				caps := s["capabilities"].(values)
				if s["privileged"] != nil || s["readOnlyRootFilesystem"] != true || s["allowPrivilegeEscalation"] != false || !slices.Equal(caps["drop"].([]any), []any{"ALL"}) {
					t.Errorf("%s: %v: %v", v.File, c["name"], s)
				}
				added, _ := caps["add"].([]any)
				for _, added := range added {
					if added != "NET_ADMIN" && (added != "NET_RAW" || c["name"] != "kilo") {
						t.Errorf("%s: %v: capability %v", v.File, c["name"], added)
					}
				}
				if seccomp := podSpec(o)["securityContext"].(values)["seccompProfile"].(values); seccomp["type"] != "RuntimeDefault" {
					t.Errorf("%s: %v: %v", v.File, c["name"], seccomp)
				}
			}
		}
	}
	if pods < 10 {
		t.Errorf("looked at %d pods", pods)
	}
}

func rendered(t *testing.T, v values) string {
	t.Helper()
	files, err := render(chart, common.ReleaseOptions{Name: "kilo", Namespace: "kube-system", IsInstall: true}, v)
	if err != nil {
		t.Fatal(err)
	}
	if notes := files["NOTES.txt"]; !strings.Contains(notes, "rollout status ds/kilo") && !strings.Contains(notes, "helm uninstall -n kube-system kilo") {
		t.Errorf("the notes: %q", notes)
	}
	var parts []string
	for _, name := range order {
		if text := files[name]; text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "\n---\n")
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func objects(t *testing.T, text string) (out []values) {
	t.Helper()
	for _, doc := range strings.Split(text, "\n---\n") {
		var o values
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		if o != nil {
			out = append(out, o)
		}
	}
	return out
}

func find(t *testing.T, text, kind, name string) values {
	t.Helper()
	for _, o := range objects(t, text) {
		if o["kind"] == kind && o["metadata"].(values)["name"] == name {
			return o
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return nil
}

func podSpec(o values) values {
	if o["kind"] != "DaemonSet" {
		return nil
	}
	return o["spec"].(values)["template"].(values)["spec"].(values)
}

func containers(o values) (out []values) {
	list, _ := podSpec(o)["containers"].([]any)
	for _, c := range list {
		out = append(out, c.(values))
	}
	return out
}
