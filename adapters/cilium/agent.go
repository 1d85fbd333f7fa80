package cilium

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"

	"github.com/cilium/cilium/api/v1/client/daemon"
	"github.com/cilium/cilium/api/v1/models"
	openapi "github.com/go-openapi/runtime/client"
	"github.com/go-openapi/strfmt"
)

// oldest is the first Cilium whose agent says all that is asked for here.
const oldest = "1.16"

// agent is Cilium's agent on this node, at its API socket.
type agent struct {
	socket    string
	transport *http.Transport
	api       daemon.ClientService
}

func newAgent(socket string) agent {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		// It is asked seldom, and started anew without a word.
		DisableKeepAlives: true,
	}
	// The host's name goes nowhere, but HTTP wants one.
	runtime := openapi.NewWithClient("localhost", "/v1", []string{"http"}, &http.Client{Transport: t})
	return agent{socket: socket, transport: t, api: daemon.New(runtime, strfmt.Default)}
}

func (a *agent) close() { a.transport.CloseIdleConnections() }

// answers is what Cilium's agent said. Nothing that is pointed to is nil.
type answers struct {
	health *models.StatusResponse
	config *models.DaemonConfigurationStatus
}

// ask asks the agent. An error says that it does not answer, or not as expected.
func (a *agent) ask(ctx context.Context) (*answers, error) {
	health, err := a.api.GetHealthzContext(ctx, daemon.NewGetHealthzParams())
	if err != nil {
		return nil, a.silent(err)
	}
	config, err := a.api.GetConfigContext(ctx, daemon.NewGetConfigParams())
	if err != nil {
		return nil, a.silent(err)
	}
	if health.Payload == nil || config.Payload == nil || config.Payload.Status == nil {
		return nil, fmt.Errorf("the agent of Cilium at %s gave an empty answer", a.socket)
	}
	// While it starts, or cannot do its work, most of what it says is missing.
	if s := health.Payload.Cilium; health.Payload.Routing == nil && s != nil && s.State != models.StatusStateOk {
		return nil, fmt.Errorf("the agent of Cilium at %s is not ready yet: it says %s (%s)", a.socket, s.State, s.Msg)
	}
	return &answers{health: health.Payload, config: config.Payload.Status}, nil
}

func (a *agent) silent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the agent of Cilium is not up on this node: waiting for %s", a.socket)
	}
	return fmt.Errorf("the agent of Cilium at %s: %w", a.socket, err)
}

// version is what the agent calls itself: "1.20.2"; "unknown" where it does not.
func (s *answers) version() string {
	if s.health.Cilium != nil {
		// "1.20.2 (v1.20.2-6a9c2b1f)"
		if v, _, _ := strings.Cut(s.health.Cilium.Msg, " "); v != "" {
			return v
		}
	}
	return "unknown"
}

// chaining is the mode in which Cilium is chained behind a CNI that routes; ""
// where Cilium is that CNI.
func (s *answers) chaining() string {
	if c := s.health.CniChaining; c != nil && c.Mode != models.CNIChainingStatusModeNone && c.Mode != models.CNIChainingStatusModePortmap {
		return c.Mode
	}
	return ""
}

// flag is an option of the agent that is on or off; false where it does not know it.
func (s *answers) flag(name string) bool {
	on, _ := s.config.DaemonConfigurationMap[name].(bool)
	return on
}

func (s *answers) tunnels() bool {
	return s.health.Routing != nil && s.health.Routing.InterHostRoutingMode == models.RoutingInterHostRoutingModeTunnel
}

// devices are the interfaces that Cilium takes for the node's own.
func (s *answers) devices() []string {
	if k := s.health.KubeProxyReplacement; k != nil && len(k.Devices) > 0 {
		return k.Devices
	}
	var out []string
	list, _ := s.config.DaemonConfigurationMap["Devices"].([]any)
	for _, d := range list {
		if name, ok := d.(string); ok {
			out = append(out, name)
		}
	}
	return out
}
