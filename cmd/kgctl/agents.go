package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kilo-overlay/kilo/core/model"
	"github.com/kilo-overlay/kilo/core/report"
)

const (
	// askTimeout bounds one agent's answer, askAtOnce how many are asked together.
	askTimeout = 5 * time.Second
	askAtOnce  = 32
	// statusMost is more than an agent of a mesh of ten thousand nodes says.
	statusMost = 32 << 20
	// agentLabel finds the agents' pods.
	agentLabel = "app.kubernetes.io/name=kilo"
)

// answer is what one agent said, or why it did not.
type answer struct {
	node   string
	status *report.Status
	err    error
}

// askAgents asks the agent of each node: through the API server, which carries
// the question to its pod, or directly.
func askAgents(ctx context.Context, o *options, nodes []model.Node) ([]answer, error) {
	get := askDirectly(o)
	if !o.direct {
		var err error
		if get, err = askByPods(ctx, o); err != nil {
			return nil, err
		}
	}
	answers := make([]answer, len(nodes))
	var wg sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	for i := range nodes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			answers[i].node = nodes[i].Name
			text, err := get(ctx, &nodes[i])
			if err == nil {
				var s report.Status
				if err = json.Unmarshal(text, &s); err == nil {
					answers[i].status = &s
				}
			}
			answers[i].err = err
		})
	}
	wg.Wait()
	return answers, nil
}

// askDirectly asks at a node's internal address, where agents listen.
func askDirectly(o *options) func(context.Context, *model.Node) ([]byte, error) {
	return func(ctx context.Context, n *model.Node) ([]byte, error) {
		if len(n.InternalIPs) == 0 {
			return nil, errors.New("it has no internal address to ask at")
		}
		at := net.JoinHostPort(n.InternalIPs[0].Addr().String(), strconv.Itoa(int(o.agentPort)))
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/status", nil)
		if err != nil {
			return nil, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("http://%s/status: %s", at, response.Status)
		}
		return io.ReadAll(io.LimitReader(response.Body, statusMost))
	}
}

// askByPods asks by the pod proxy of the API server.
func askByPods(ctx context.Context, o *options) (func(context.Context, *model.Node) ([]byte, error), error) {
	config, err := clusterConfig(o)
	if err != nil {
		return nil, err
	}
	c := rest.CopyConfig(config.REST)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.QPS, c.Burst = 100, 100
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	var pods corev1.PodList
	if err := client.Get().Namespace(o.namespace).Resource("pods").Param("labelSelector", agentLabel).Do(ctx).Into(&pods); err != nil {
		return nil, fmt.Errorf("list pods in namespace %s: %w; --direct asks the agents without it", o.namespace, err)
	}
	byNode := map[string]string{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			byNode[p.Spec.NodeName] = p.Name
		}
	}
	return func(ctx context.Context, n *model.Node) ([]byte, error) {
		pod := byNode[n.Name]
		if pod == "" {
			return nil, fmt.Errorf("no pod with label %s runs there in namespace %s; agents that are no pods are asked with --direct", agentLabel, o.namespace)
		}
		return client.Get().Namespace(o.namespace).Resource("pods").Name(fmt.Sprintf("http:%s:%d", pod, o.agentPort)).
			SubResource("proxy").Suffix("status").Do(ctx).Raw()
	}, nil
}
