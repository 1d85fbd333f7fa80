package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// agentDaemon is the agent's name among a machine's daemons.
const agentDaemon = "kg"

// agentPort is where the agent serves metrics, health and status.
const agentPort = 1107

// provideAgent puts the agent that this lab runs beside its other files.
func (l *Lab) provideAgent(ctx context.Context, binary string) error {
	if len(l.Agents()) == 0 && binary == "" {
		return nil
	}
	if binary != "" {
		return copyFile(binary, l.agentBinary())
	}
	return l.goBuild(ctx, "./cmd/kg", l.agentBinary())
}

func (l *Lab) agentBinary() string { return l.path("bin", "kg") }

// agentArgs is the command line of a machine's agent, the program left out.
// Later flags win, so the spec's may correct ours.
func (l *Lab) agentArgs(m *Machine) []string {
	args := []string{
		"--hostname=" + m.Name,
		"--kubeconfig=" + l.Kubeconfig("agent"),
		"--adapter=auto",
		// The lab's internet is a documentation range (RFC 5737), which no
		// agent takes for public by itself.
		"--public-cidrs=" + l.Spec.Internet.String(),
		"--log-level=debug",
	}
	if l.Spec.Sidecar {
		args = append(args, "--create-interface=false")
	}
	return slices.Concat(args, l.Spec.AgentFlags, m.spec.AgentFlags)
}

// StartAgent starts the agent; flags are for this run only.
func (m *Machine) StartAgent(ctx context.Context, flags ...string) error {
	if _, err := os.Stat(m.lab.agentBinary()); err != nil {
		return fmt.Errorf("lab %s was brought up without an agent: %w", m.lab.Name, err)
	}
	if m.lab.Spec.Manifest != "" {
		return m.startFromManifest(ctx, agentDaemon, flags...)
	}
	var env []string
	for k, v := range m.spec.AgentEnv {
		env = append(env, k+"="+v)
	}
	return m.startDaemonEnv(ctx, agentDaemon, env, m.lab.agentBinary(), append(m.lab.agentArgs(m), flags...)...)
}

// startAgentPod starts all that an agent's pod runs. The agent comes first and
// has to wait for its sidecar: nothing orders them in a cluster.
func (m *Machine) startAgentPod(ctx context.Context) error {
	if err := m.StartAgent(ctx); err != nil {
		return err
	}
	sidecar := m.lab.Spec.Sidecar
	if m.lab.Spec.Manifest != "" {
		var err error
		if sidecar, err = m.lab.hasDaemonSet(ctx, SidecarDaemon); err != nil {
			return err
		}
	}
	if !sidecar {
		return nil
	}
	return m.StartSidecar(ctx)
}

// SidecarDaemon is the name, among a machine's daemons, of the process that
// carries packets where Spec.Sidecar asks for one.
const SidecarDaemon = "kg-wireguard"

// StartSidecar starts the process that carries packets.
func (m *Machine) StartSidecar(ctx context.Context) error {
	if m.lab.Spec.Manifest != "" {
		return m.startFromManifest(ctx, SidecarDaemon)
	}
	return m.startDaemon(ctx, SidecarDaemon, m.lab.agentBinary(), "wireguard", "--wireguard=userspace")
}

// StopAgent ends the agent by SIGTERM, as a DaemonSet's rollout does.
func (m *Machine) StopAgent(ctx context.Context) error { return m.stopDaemon(ctx, agentDaemon) }

// KillAgent ends the agent by SIGKILL, as a crash does.
func (m *Machine) KillAgent(ctx context.Context) error { return m.KillDaemon(ctx, agentDaemon) }

// RestartAgent stops the agent and starts it again.
func (m *Machine) RestartAgent(ctx context.Context, flags ...string) error {
	if err := m.StopAgent(ctx); err != nil {
		return err
	}
	return m.StartAgent(ctx, flags...)
}

// UninstallAgent stops the agent and runs `kg uninstall` on its machine.
func (m *Machine) UninstallAgent(ctx context.Context) error {
	if err := m.StopAgent(ctx); err != nil {
		return err
	}
	if err := m.stopDaemon(ctx, SidecarDaemon); err != nil {
		return err
	}
	if m.lab.Spec.Manifest != "" {
		return m.uninstallFromManifest(ctx)
	}
	_, err := m.Exec(ctx, m.lab.agentBinary(), "uninstall", "--hostname="+m.Name, "--kubeconfig="+m.lab.Kubeconfig("agent"))
	return err
}

// UpgradeAgents replaces the agent's binary ("": built anew from the source
// tree) and restarts all agents, one after the other, each when the one before
// it is ready, as a DaemonSet's rolling update does.
func (l *Lab) UpgradeAgents(ctx context.Context, binary string) error {
	if err := l.provideAgent(ctx, binary); err != nil {
		return err
	}
	for _, n := range l.Agents() {
		if !n.Alive() {
			continue
		}
		if err := n.RestartAgent(ctx); err != nil {
			return err
		}
		if err := n.WaitForAgent(ctx, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// WaitForAgent waits until the machine's agent says that it is ready. The error
// has what it says instead.
func (m *Machine) WaitForAgent(ctx context.Context, limit time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	if poll(wait, 100*time.Millisecond, func() bool {
		last = m.agentReady(wait)
		return last == nil || m.Daemon(agentDaemon) == 0 // nobody starts it again
	}) != nil {
		return fmt.Errorf("after %s: %w", limit, last)
	}
	return last
}

// AgentStays waits until the machine's agent answers at all, or for a few
// seconds. The error says that it has ended, and its last words.
func (m *Machine) AgentStays(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ended := false
	_ = poll(wait, 100*time.Millisecond, func() bool {
		ended = m.Daemon(agentDaemon) == 0
		_, err := m.AgentGet(wait, "/status")
		return ended || err == nil
	})
	if ended {
		return m.agentReady(ctx)
	}
	return ctx.Err()
}

// RenewAgents is UpgradeAgents where the source tree gives another agent than
// the one that the lab has; renewed tells whether it did.
func (l *Lab) RenewAgents(ctx context.Context) (renewed bool, err error) {
	fresh := l.agentBinary() + ".fresh"
	defer os.Remove(fresh)
	if err := l.goBuild(ctx, "./cmd/kg", fresh); err != nil {
		return false, err
	}
	was, err := os.ReadFile(l.agentBinary())
	if err != nil {
		return false, err
	}
	is, err := os.ReadFile(fresh)
	if err != nil || bytes.Equal(was, is) {
		return false, err
	}
	return true, l.UpgradeAgents(ctx, fresh)
}

// agentReady says in one line why the machine's agent is not ready; nil if it
// is.
func (m *Machine) agentReady(ctx context.Context) error {
	if m.Daemon(agentDaemon) == 0 {
		return fmt.Errorf("%s: the agent does not run; its last words:\n%s", m.Name, lastWords(m.LogFile(agentDaemon)))
	}
	if _, err := m.AgentGet(ctx, "/readyz"); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n") // the first sentence of many
		return errors.New(line)
	}
	return nil
}

// AgentGet fetches a path (/metrics, /status, /readyz …) from the machine's
// agent, at the address where it serves others.
func (m *Machine) AgentGet(ctx context.Context, path string) (string, error) {
	return m.Get(ctx, fmt.Sprintf("http://%s:%d%s", m.Addr, agentPort, path))
}

// WaitForMesh waits until every agent says that it is ready and every pod
// reaches every other. The error names what is missing.
func (l *Lab) WaitForMesh(ctx context.Context, limit time.Duration) (Matrix, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var unready []string
	if poll(ctx, 250*time.Millisecond, func() bool {
		unready = nil
		for _, n := range l.Agents() {
			if err := n.agentReady(ctx); err != nil {
				unready = append(unready, err.Error())
			}
		}
		return len(unready) == 0
	}) != nil {
		return Matrix{}, fmt.Errorf("agents not ready after %s:\n%s", limit, strings.Join(unready, "\n"))
	}
	for {
		m, err := l.Matrix(ctx)
		if err == nil && m.OK() {
			return m, nil
		}
		if ctx.Err() != nil {
			return m, fmt.Errorf("the mesh is not whole after %s: %s", limit, m.Summary())
		}
	}
}
