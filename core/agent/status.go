package agent

import "github.com/kilo-overlay/kilo/core/report"

// What the agent tells at /status.
type (
	Status         = report.Status
	TunnelStatus   = report.Tunnel
	AdapterStatus  = report.Adapter
	LocationStatus = report.Location
	PeerReport     = report.Peer
	Pass           = report.Pass
)
