package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kilo-overlay/kilo/core/model"
)

// metrics are the agent's own, in a registry of their own. The first five keep
// Kilo's names and meaning.
type metrics struct {
	registry *prometheus.Registry

	errors     *prometheus.CounterVec // event
	leader     prometheus.Gauge
	nodes      prometheus.Gauge
	peers      prometheus.Gauge
	reconciles prometheus.Counter

	changes  *prometheus.CounterVec // kind
	drift    *prometheus.CounterVec // kind
	warnings *prometheus.GaugeVec   // kind
	waiting  prometheus.Gauge
	absent   prometheus.Gauge
	ready    prometheus.Gauge
	podMTU   *prometheus.GaugeVec // what
	paths    *prometheus.GaugeVec // node
	duration prometheus.Histogram
	live     *prometheus.GaugeVec // location
	links    *prometheus.GaugeVec // node
	tunnel   *prometheus.GaugeVec // kind
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kilo_errors_total", Help: "Number of errors that occurred while administering the mesh, by what failed."}, []string{"event"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kilo_leader", Help: "1 while this node serves as its location's gateway."}),
		nodes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kilo_nodes", Help: "Number of nodes in the mesh."}),
		peers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kilo_peers", Help: "Number of Peers in the mesh."}),
		reconciles: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kilo_reconciles_total", Help: "Number of reconciliation attempts."}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kilo_changes_total", Help: "Changes made to the kernel, by kind of thing."}, []string{"kind"}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kilo_drift_repairs_total", Help: "Changes made because something else had altered or removed what is ours, by kind of thing."}, []string{"kind"}),
		warnings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kilo_warnings", Help: "Warnings that hold now, by kind; /status spells them out."}, []string{"kind"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kilo_waiting", Help: "Number of things that this node does not know yet; /status spells them out."}),
		absent: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kilo_nodes_absent", Help: "Number of nodes that are not in the mesh; /status says what is missing of them."}),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kilo_ready", Help: "1 once the host CNI is known and the kernel holds what the last plan wanted."}),
		podMTU: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kilo_pod_mtu_bytes", Help: "MTU of pods on this node: given is what the host CNI gives them, best what fits every way to other locations; absent while not known."}, []string{"what"}),
		paths: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kilo_path_mtu_bytes", Help: "Largest packet inside the tunnel that reaches a node whole over the WireGuard peer it has here; absent while not known."}, []string{"node"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kilo_reconcile_duration_seconds", Help: "Time that one recomputation took, applying included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10)}),
		live: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kilo_location_live", Help: "1 while a location answers through the tunnel; only for locations that are asked."}, []string{"location"}),
		links: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kilo_link_live", Help: "1 while a node answers over the link of its own with this one; granularity cross and full."}, []string{"node"}),
		tunnel: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kilo_tunnel_info", Help: "Always 1; the label tells the kind of WireGuard device: kernel or userspace."}, []string{"kind"}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.errors, m.leader, m.nodes, m.peers, m.reconciles,
		m.changes, m.drift, m.warnings, m.waiting, m.absent, m.ready, m.podMTU, m.paths, m.duration, m.live, m.links, m.tunnel,
	)
	return m
}

func (m *metrics) setWarnings(ws []model.Warning) {
	m.warnings.Reset()
	for _, w := range ws {
		m.warnings.WithLabelValues(w.Kind).Inc()
	}
}

func (m *metrics) setPaths(bytes map[string]int) {
	m.paths.Reset()
	for node, mtu := range bytes {
		m.paths.WithLabelValues(node).Set(float64(mtu))
	}
}

func (m *metrics) setPodMTU(given, best int) {
	m.podMTU.Reset()
	for what, bytes := range map[string]int{"given": given, "best": best} {
		if bytes > 0 {
			m.podMTU.WithLabelValues(what).Set(float64(bytes))
		}
	}
}

func (m *metrics) setLive(locations, links map[string]bool) {
	for gauge, live := range map[*prometheus.GaugeVec]map[string]bool{m.live: locations, m.links: links} {
		gauge.Reset()
		for name, ok := range live {
			gauge.WithLabelValues(name).Set(oneIf(ok))
		}
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// peerCollector reads the device when somebody asks, not before: an agent at
// rest does nothing.
type peerCollector struct {
	read func() []PeerReport
	now  func() time.Time
}

var (
	peerLabels = []string{"peer", "public_key"}
	peerAge    = prometheus.NewDesc("kilo_peer_last_handshake_age_seconds", "Seconds since the last handshake with a WireGuard peer; absent where there was none.", peerLabels, nil)
	peerRx     = prometheus.NewDesc("kilo_peer_received_bytes_total", "Bytes received from a WireGuard peer.", peerLabels, nil)
	peerTx     = prometheus.NewDesc("kilo_peer_sent_bytes_total", "Bytes sent to a WireGuard peer.", peerLabels, nil)
)

func (c *peerCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- peerAge
	ch <- peerRx
	ch <- peerTx
}

func (c *peerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.read() {
		labels := []string{p.Name, p.Key.String()}
		if p.LastHandshake != nil {
			ch <- prometheus.MustNewConstMetric(peerAge, prometheus.GaugeValue, c.now().Sub(*p.LastHandshake).Seconds(), labels...)
		}
		ch <- prometheus.MustNewConstMetric(peerRx, prometheus.CounterValue, float64(p.ReceivedBytes), labels...)
		ch <- prometheus.MustNewConstMetric(peerTx, prometheus.CounterValue, float64(p.SentBytes), labels...)
	}
}
