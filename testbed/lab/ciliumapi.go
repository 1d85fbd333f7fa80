package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// CiliumEndpoint is what a Cilium agent says of one of its endpoints: a pod, or
// the host itself.
type CiliumEndpoint struct {
	ID       int
	State    string     // ready, regenerating, waiting-for-identity …
	Addr     netip.Addr // a pod's; zero for the host
	Device   string     // the host's end of its link
	Identity int
	Labels   []string // that make its identity
}

// CiliumGet asks the machine's Cilium agent for something below /v1: config,
// endpoint, healthz, ip, cluster/nodes … The answer is JSON.
func (m *Machine) CiliumGet(ctx context.Context, path string) (string, error) {
	pid, err := m.pid()
	if err != nil {
		return "", err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		// A socket's path is looked up in our own view of the files.
		return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/%d/root%s", pid, ciliumSocket))
	}
	body, err := fetch(ctx, dial, "http://cilium/v1/"+strings.TrimPrefix(path, "/"))
	if err != nil {
		return "", fmt.Errorf("node %s: Cilium's agent: %w", m.Name, err)
	}
	return body, nil
}

// CiliumShell has the machine's Cilium agent carry out one line in its debug shell,
// as `cilium-dbg shell` does: "db/show node-addresses", say. What the agent thinks
// of the line is in the answer, not in the error.
func (m *Machine) CiliumShell(ctx context.Context, line string) (string, error) {
	pid, err := m.pid()
	if err != nil {
		return "", err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/%d/root%s", pid, ciliumShell))
	if err != nil {
		return "", fmt.Errorf("node %s: Cilium's agent: %w", m.Name, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(conn, "%s\nexit\n", line); err != nil {
		return "", fmt.Errorf("node %s: Cilium's agent: %w", m.Name, err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		err = fmt.Errorf("node %s: Cilium's agent: %w", m.Name, err)
	}
	return string(out), err
}

// CiliumEndpoints lists the endpoints of the machine's Cilium agent.
func (m *Machine) CiliumEndpoints(ctx context.Context) ([]CiliumEndpoint, error) {
	text, err := m.CiliumGet(ctx, "endpoint")
	if err != nil {
		return nil, err
	}
	endpoints, err := parseCiliumEndpoints(text)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", m.Name, err)
	}
	return endpoints, nil
}

func parseCiliumEndpoints(text string) ([]CiliumEndpoint, error) {
	var said []struct {
		ID     int `json:"id"`
		Status struct {
			State    string `json:"state"`
			Identity struct {
				ID     int      `json:"id"`
				Labels []string `json:"labels"`
			} `json:"identity"`
			Networking struct {
				Device     string `json:"interface-name"`
				Addressing []struct {
					IPv4 string `json:"ipv4"`
				} `json:"addressing"`
			} `json:"networking"`
		} `json:"status"`
	}
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return nil, fmt.Errorf("read the endpoints of Cilium: %w", err)
	}
	var endpoints []CiliumEndpoint
	for _, s := range said {
		e := CiliumEndpoint{
			ID: s.ID, State: s.Status.State, Device: s.Status.Networking.Device,
			Identity: s.Status.Identity.ID, Labels: s.Status.Identity.Labels,
		}
		for _, a := range s.Status.Networking.Addressing {
			if a.IPv4 == "" {
				continue
			}
			addr, err := netip.ParseAddr(a.IPv4)
			if err != nil {
				return nil, fmt.Errorf("endpoint %d of Cilium: %w", s.ID, err)
			}
			e.Addr = addr
		}
		endpoints = append(endpoints, e)
	}
	return endpoints, nil
}

// ciliumReady tells what of the machine's Cilium is not ready yet; nil if all
// is. The agent itself is Ok long before its endpoints are.
func (m *Machine) ciliumReady(ctx context.Context) error {
	text, err := m.CiliumGet(ctx, "healthz")
	if err != nil {
		return err
	}
	var health struct {
		Cilium struct {
			State string `json:"state"`
			Msg   string `json:"msg"`
		} `json:"cilium"`
	}
	if err := json.Unmarshal([]byte(text), &health); err != nil {
		return fmt.Errorf("node %s: Cilium's health: %w", m.Name, err)
	}
	if health.Cilium.State != "Ok" {
		return fmt.Errorf("node %s: Cilium is in state %s: %s", m.Name, health.Cilium.State, health.Cilium.Msg)
	}
	endpoints, err := m.CiliumEndpoints(ctx)
	if err != nil {
		return err
	}
	var problems []error
	known := map[netip.Addr]bool{}
	for _, e := range endpoints {
		known[e.Addr] = true
		if e.State != "ready" {
			problems = append(problems, fmt.Errorf("node %s: endpoint %d (%s) is %s", m.Name, e.ID, e.Addr, e.State))
		}
	}
	if len(endpoints) == 0 {
		problems = append(problems, fmt.Errorf("node %s: Cilium has no endpoint", m.Name))
	}
	for _, p := range m.lab.Pods() {
		if p.Node == m.Name && !known[p.Addr] {
			problems = append(problems, fmt.Errorf("node %s: Cilium does not know pod %s", m.Name, p.Name))
		}
	}
	return errors.Join(problems...)
}
