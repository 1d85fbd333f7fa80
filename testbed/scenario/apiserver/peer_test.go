package apiserver_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/testbed/tools"
)

const (
	goodKey   = "GY5aT1N9dTR/nJnT1N2f4ClZWVj0jOAld0r8ysWLyjg="
	secretKey = "dGhpcyBpcyBhIHByZXNoYXJlZCBrZXkgb2YgYSBQZWU="
)

// try applies a Peer and returns what kubectl says.
func (s *server) try(name, spec string) (said string, err error) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.tools[tools.Kubectl], "--server="+s.config("").Host, "--token="+adminToken,
		"--insecure-skip-tls-verify", "--cache-dir="+filepath.Join(s.dir, "cache"), "--kubeconfig="+os.DevNull, "apply", "--filename=-")
	cmd.Stdin = strings.NewReader("apiVersion: kilo.squat.ai/v1alpha1\nkind: Peer\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// What the API server lets in, and what it says of the rest.
func TestPeerValidation(t *testing.T) {
	s := start(t)
	s.apply("crds.yaml")
	s.kubectl("", "wait", "--for=condition=Established", "crd/peers.kilo.squat.ai")
	with := func(more string) string { return "publicKey: " + goodKey + ", allowedIPs: [10.5.0.1/32], " + more }
	for name, spec := range map[string]string{
		"kilo-readme":      with("persistentKeepalive: 10"),
		"kilo-ip":          with("endpoint: {dnsOrIP: {ip: 203.0.113.5}, port: 51820}"),
		"kilo-dns":         with("endpoint: {dnsOrIP: {dns: vpn.example.com}, port: 51820}"),
		"kilo-both":        with("endpoint: {dnsOrIP: {dns: vpn.example.com, ip: 203.0.113.5}, port: 51820}"),
		"kilo-before-dns":  with("endpoint: {ip: 203.0.113.5, port: 51820}"),
		"kilo-psk":         with("presharedKey: " + secretKey),
		"kilo-no-psk":      with("presharedKey: ''"),
		"as-text":          with("endpoint: dr-gateway.example.com:51820"),
		"as-text-ip":       with("endpoint: 203.0.113.5:51820"),
		"as-text-ip6":      with("endpoint: '[2001:db8::5]:51820'"),
		"host-bits":        "publicKey: " + goodKey + ", allowedIPs: [10.5.0.1/24, 10.5.0.2/24, 'fd00::1/64']",
		"until":            with("expiresAt: '2027-01-31T18:00:00Z'"),
		"limited":          with("allowedDestinations: [{prefix: 10.96.0.10}, {prefix: 10.244.0.0/16}]"),
		"limited-by-name":  with("allowedDestinations: [{namespace: shop}, {namespace: shop, service: web}, {prefix: 10.96.0.10}]"),
		"exit":             "publicKey: " + goodKey + ", allowedIPs: [0.0.0.0/0], defaultRoute: true",
		"key-in-a-secret":  with("presharedKeySecretRef: {}"),
		"key-in-another":   with("presharedKeySecretRef: {name: vpn, key: psk}"),
		"no-default-route": with("defaultRoute: false, allowedDestinations: [{prefix: 10.96.0.10}]"),
	} {
		if said, err := s.try(name, spec); err != nil {
			t.Errorf("%s: %s", name, said)
		}
	}
	if got := s.kubectl("", "get", "peer", "key-in-a-secret", "--output=jsonpath={.spec.presharedKeySecretRef.name}"); got != "kilo-preshared-keys" {
		t.Errorf("the Secret's name is %q", got)
	}
	for _, c := range []struct{ spec, says string }{
		{"publicKey: " + goodKey + ", allowedIPs: [10.5.0.1]", `spec.allowedIPs[0]: Invalid value: "10.5.0.1": want an address with its prefix length; 10.5.0.1/32 is one address`},
		{"publicKey: " + goodKey + ", allowedIPs: []", "spec.allowedIPs: Invalid value: 0: spec.allowedIPs in body should have at least 1 items"},
		{"publicKey: " + goodKey, "spec.allowedIPs: Required value"},
		{"publicKey: " + goodKey + ", allowedIPs: [0.0.0.0/0]", "spec.allowedIPs: Invalid value"},
		{"publicKey: " + goodKey + ", allowedIPs: [0.0.0.0/0]", "set defaultRoute: true if that is meant"},
		{"publicKey: short, allowedIPs: [10.5.0.1/32]", "want a WireGuard public key: 44 characters of base64, as wg pubkey prints it"},
		{"publicKey: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=, allowedIPs: [10.5.0.1/32]", "want a WireGuard public key"},
		{with("presharedKey: not-base64"), "spec.presharedKey: Invalid value"},
		{with("presharedKey: not-base64"), "want a WireGuard preshared key: 44 characters of base64, as wg genpsk prints it"},
		{with("presharedKey: " + secretKey + ", presharedKeySecretRef: {}"), "give the preshared key once"},
		{with("persistentKeepalive: 70000"), "spec.persistentKeepalive"},
		{with("persistentKeepalive: -1"), "spec.persistentKeepalive"},
		{with("endpoint: {port: 0, dnsOrIP: {ip: 203.0.113.5}}"), "spec.endpoint.port"},
		{with("endpoint: {dnsOrIP: {ip: 203.0.113.5}}"), "spec.endpoint.port: Required value"},
		{with("endpoint: 203.0.113.5"), "spec.endpoint"},
		{with("endpoint: 'home:https'"), "spec.endpoint"},
		{with("expiresAt: tomorrow"), "spec.expiresAt"},
		{with("allowedDestinations: []"), "spec.allowedDestinations"},
		{with("allowedDestinations: [{prefix: web}]"), "want an address or a prefix, such as 10.96.0.10 or 10.244.0.0/16"},
		{with("allowedDestinations: [{}]"), "want a prefix, or a namespace with or without a service in it"},
		{with("allowedDestinations: [{namespace: shop, prefix: 10.96.0.10}]"), "want a prefix, or a namespace with or without a service in it"},
		{with("allowedDestinations: [{service: web, prefix: 10.96.0.10}]"), "a Service is in a namespace: say which"},
		{with("allowedDestinations: [{namespace: Shop}]"), "want the name of a namespace"},
		{with("allowedDestinations: [{namespace: shop, service: web.shop}]"), "want the name of a Service"},
		{"publicKey: " + goodKey + ", allowedIPs: [0.0.0.0/0], defaultRoute: true, allowedDestinations: [{prefix: 10.96.0.10}]", "cannot be limited"},
	} {
		said, err := s.try("refused", c.spec)
		if err == nil || !strings.Contains(said, c.says) {
			t.Errorf("{%s}: %v\n%s\nwant it refused, saying %s", c.spec, err, said, c.says)
		}
		if strings.Contains(said, secretKey) {
			t.Errorf("a refusal shows the preshared key: %s", said)
		}
	}
}

func parseKey(t *testing.T, text string) model.Key {
	t.Helper()
	k, err := model.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A Peer's preshared key may be in the one Secret that agents see; without its key
// a Peer is left out, and one whose time is up is gone, by itself.
func TestPeerKeysAndTimes(t *testing.T) {
	s := start(t)
	s.apply("rbac.yaml")
	s.apply("crds.yaml")
	s.kubectl("", "wait", "--for=condition=Established", "crd/peers.kilo.squat.ai")
	s.node(t.Context(), "e1", "10.0.0.1", nil)
	c, _ := agent(s, "e1", t.TempDir())
	put := func(name, spec string) {
		t.Helper()
		if said, err := s.try(name, spec); err != nil {
			t.Fatal(said)
		}
	}
	put("laptop", "publicKey: "+goodKey+", allowedIPs: [10.5.0.1/32], presharedKeySecretRef: {}")
	put("foreign", "publicKey: "+model.Key{5}.String()+", allowedIPs: [10.5.0.5/32], presharedKeySecretRef: {name: bootstrap-token}")
	s.kubectl("", "create", "secret", "generic", "bootstrap-token", "--namespace=kube-system", "--from-literal=foreign="+secretKey)
	sees(s, c, true, "both left out", func(s model.Snapshot, w []model.Warning) bool {
		return len(s.Peers) == 0 && has(w, cluster.NoPresharedKey, "peer/laptop") && has(w, cluster.NoPresharedKey, "peer/foreign")
	})
	s.kubectl("", "create", "secret", "generic", "kilo-preshared-keys", "--namespace=kube-system", "--from-literal=laptop="+secretKey)
	want, err := model.ParsePresharedKey(secretKey)
	if err != nil {
		t.Fatal(err)
	}
	sees(s, c, true, "the laptop with its key", func(s model.Snapshot, w []model.Warning) bool {
		return peerNames(s) == "laptop" && s.Peers[0].PresharedKey.Bytes() == want.Bytes()
	})
	heard := model.Heard{Gateway: "e1", Last: map[model.Key]time.Time{parseKey(t, goodKey): time.Now()}}
	var versions [2]string
	for i := range versions {
		if err := c.PeerStatuses(t.Context(), heard); err != nil {
			t.Fatal(err)
		}
		versions[i] = s.kubectl("", "get", "peer", "laptop", "foreign", "--output=jsonpath={.items[*].metadata.resourceVersion}")
	}
	if versions[0] != versions[1] {
		t.Errorf("no transition, but it was written: versions %s, then %s", versions[0], versions[1])
	}
	s.kubectl("", "wait", "--for=condition=Ready", "peer/laptop", "--timeout=10s")
	s.kubectl("", "wait", "--for=condition=Accepted=false", "peer/foreign", "--timeout=10s")
	table := s.kubectl("", "get", "peers")
	t.Log(table)
	for _, want := range []string{"ALLOWED IPS", "ENDPOINT", "READY", "HANDSHAKE", "AGE", "True", "False"} {
		if !strings.Contains(table, want) {
			t.Errorf("kubectl get peers shows no %s:\n%s", want, table)
		}
	}
	loaded, _, err := cluster.Load(t.Context(), cluster.Config{REST: s.config(adminToken)})
	if err != nil || len(loaded.Peers) != 2 || loaded.Peers[1].PresharedKey.Bytes() != want.Bytes() {
		t.Errorf("kgctl reads %v, %v", loaded.Peers, err)
	}
	s.kubectl("", "delete", "secret", "kilo-preshared-keys", "--namespace=kube-system")
	sees(s, c, true, "nobody without a key", func(s model.Snapshot, _ []model.Warning) bool { return len(s.Peers) == 0 })

	end := time.Now().Add(6 * time.Second)
	put("guest", "publicKey: "+model.Key{6}.String()+", allowedIPs: [10.5.0.6/32], expiresAt: '"+end.UTC().Format(time.RFC3339)+"'")
	sees(s, c, true, "the guest", func(s model.Snapshot, _ []model.Warning) bool { return peerNames(s) == "guest" })
	sees(s, c, true, "the guest gone", func(s model.Snapshot, w []model.Warning) bool {
		return len(s.Peers) == 0 && has(w, cluster.PeerExpired, "peer/guest")
	})
	if late := time.Since(end); late > 3*time.Second {
		t.Errorf("the guest's access ended %s late", late)
	}
	if got := fmt.Sprint(loaded); strings.Contains(got, secretKey) {
		t.Error("the snapshot prints a preshared key")
	}
}

// What a Peer may speak to by name follows what stands in the namespace. While an
// agent may not see that, the Peer may speak to nothing of it.
func TestPeerDestinations(t *testing.T) {
	s := start(t)
	s.apply("crds.yaml")
	s.apply("rbac.yaml")
	s.kubectl("", "wait", "--for=condition=Established", "crd/peers.kilo.squat.ai")
	s.node(t.Context(), "e1", "10.0.0.1", nil)
	s.kubectl("", "create", "namespace", "shop")
	s.kubectl("", "create", "serviceaccount", "default", "--namespace=shop") // no controller makes it
	s.kubectl("", "create", "service", "clusterip", "web", "--namespace=shop", "--tcp=80")
	clusterIP := s.kubectl("", "get", "service", "web", "--namespace=shop", "--output=jsonpath={.spec.clusterIP}")
	pod := func(name, ip string, hostNetwork bool) {
		s.kubectl(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop}, spec: {nodeName: e1, hostNetwork: %v, automountServiceAccountToken: false, containers: [{name: c, image: i}]}}`, name, hostNetwork), "apply", "--filename=-")
		s.kubectl("", "patch", "pod", name, "--namespace=shop", "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(`{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}}`, ip))
	}
	pod("one", "10.244.1.5", false)
	pod("host", "10.0.0.1", true)
	c, _ := agent(s, "e1", t.TempDir())
	put := func(to string) {
		t.Helper()
		if said, err := s.try("guest", "publicKey: "+goodKey+", allowedIPs: [10.5.0.1/32], allowedDestinations: ["+to+"]"); err != nil {
			t.Fatal(said)
		}
	}
	may := func(what string, want ...string) {
		t.Helper()
		slices.Sort(want)
		sees(s, c, true, what, func(s model.Snapshot, _ []model.Warning) bool {
			if len(s.Peers) != 1 || !s.Peers[0].Limited() {
				return false
			}
			var got []string
			for _, d := range s.Peers[0].Named {
				for _, p := range d.Addresses {
					got = append(got, p.Addr().String())
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	put("{namespace: shop, service: web}")
	may("the Service alone", clusterIP)
	put("{namespace: shop}")
	may("the Service and the pod of its own", clusterIP, "10.244.1.5")
	pod("two", "10.244.1.6", false)
	may("one pod more", clusterIP, "10.244.1.5", "10.244.1.6")
	s.kubectl("", "delete", "pod", "one", "--namespace=shop", "--force", "--grace-period=0")
	may("one pod less", clusterIP, "10.244.1.6")

	put("{namespace: shop, service: db}")
	sees(s, c, true, "a word about the Service that is not there", func(s model.Snapshot, w []model.Warning) bool {
		return len(s.Peers) == 1 && s.Peers[0].Limited() && len(s.Peers[0].Named[0].Addresses) == 0 && has(w, cluster.NoSuchDestination, "peer/guest")
	})
	s.kubectl("", "create", "service", "clusterip", "db", "--namespace=shop", "--clusterip=None")
	s.kubectl(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, endpoints: [{addresses: [10.244.1.9]}]}`, "apply", "--filename=-")
	may("what is behind a headless Service", "10.244.1.9")

	s.kubectl("", "create", "namespace", "dev")
	s.kubectl("", "delete", "clusterrole", "kilo")
	s.kubectl("", "create", "clusterrole", "kilo", "--verb=list,watch", "--resource=nodes,peers.kilo.squat.ai")
	put("{namespace: dev}")
	sees(s, c, true, "a word about the rights", func(s model.Snapshot, w []model.Warning) bool {
		return len(s.Peers) == 1 && s.Peers[0].Limited() && len(s.Peers[0].Named[0].Addresses) == 0 && has(w, cluster.NoSuchDestination, "peer/guest")
	})
}
