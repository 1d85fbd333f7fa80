package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kilo-overlay/kilo/core/api"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/link"
)

// linkFlags is what link and unlink are told.
type linkFlags struct {
	kubeconfig, context string // of the other cluster
	name, toName        string
	subnets             []string
	services            []string
	toServices          []string
	share               []string
	keepalive           uint16
	dryRun              bool
}

// add adds the flags that say which two clusters.
func (f *linkFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.kubeconfig, "to-kubeconfig", "", "path to the other cluster's kubeconfig (default that of the first)")
	c.Flags().StringVar(&f.context, "to-context", "", "the other cluster's context in its kubeconfig")
}

// other is the options of the other cluster.
func (f *linkFlags) other(o *options) *options {
	to := *o
	to.kubeconfig, to.context = cmp.Or(f.kubeconfig, o.kubeconfig), f.context
	if len(f.subnets) > 0 {
		to.subnets = f.subnets
	}
	return &to
}

func clusterLink(p *program, o *options) *cobra.Command {
	var f linkFlags
	c := &cobra.Command{
		Use: "link", Short: "Join two clusters: each becomes Peers of the other", Args: takes(),
		Long: `Makes each location of either cluster a Peer of the other one, after checking that
the two have no address in common. Pods, nodes and Services then reach each other
through their gateways.

Run it again when gateways change or nodes come and go: Peers that are as they should
be stay untouched, others are brought up to date, and those of locations that are no
more are removed. What else stands in the Peers, such as allowedDestinations or
presharedKeySecretRef, stays.`,
		Example: `  kgctl cluster link --kubeconfig prod.conf --to-kubeconfig dr.conf
  kgctl cluster link --context prod --to-context dr --share pods,nodes --dry-run`,
	}
	f.add(c)
	c.Flags().StringVar(&f.name, "name", "", "what the other cluster calls this one (default the context's name)")
	c.Flags().StringVar(&f.toName, "to-name", "", "what this cluster calls the other one (default the other context's name)")
	c.Flags().StringSliceVar(&f.subnets, "to-subnet", nil, "the --subnet of the other cluster's agents (default as --subnet)")
	c.Flags().StringSliceVar(&f.services, "service-cidr", nil, "the ranges of this cluster's Services (default as its API server says, from Kubernetes 1.33 on)")
	c.Flags().StringSliceVar(&f.toServices, "to-service-cidr", nil, "the ranges of the other cluster's Services")
	var all []string
	for _, w := range link.All() {
		all = append(all, string(w))
	}
	c.Flags().StringSliceVar(&f.share, "share", all, "what each cluster lets the other reach")
	// The flag is there: it cannot fail.
	_ = c.RegisterFlagCompletionFunc("share", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
	c.Flags().Uint16Var(&f.keepalive, "persistent-keepalive", 25, "seconds between keepalives, which keep the ways through NAT open; 0 is off")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and do nothing")
	c.RunE = func(c *cobra.Command, _ []string) error { return p.link(c.Context(), o, f) }
	return c
}

func clusterUnlink(p *program, o *options) *cobra.Command {
	var f linkFlags
	c := &cobra.Command{
		Use: "unlink [NAME]", Short: "Part two clusters that were linked", Args: cobra.MaximumNArgs(1),
		Long: `Removes the Peers that kgctl cluster link made, from both clusters. Where the other
cluster is no more, or is not yours, NAME is what this one calls it, and Peers are
removed from this one alone.`,
		Example: `  kgctl cluster unlink --kubeconfig prod.conf --to-kubeconfig dr.conf
  kgctl cluster unlink dr --kubeconfig prod.conf`,
	}
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 1 {
			if f.kubeconfig != "" || f.context != "" {
				return usagef("NAME is for one cluster alone: leave it out, or --to-kubeconfig and --to-context")
			}
			return p.unlinkOne(c.Context(), o, args[0])
		}
		return p.unlink(c.Context(), o, f)
	}
	return c
}

// end is one of the two clusters: how it is reached, what it is and what it stores.
type end struct {
	link.Cluster
	id     string
	config cluster.Config
	stored []api.Peer
}

// openEnds finds both clusters and what they store.
func openEnds(ctx context.Context, o *options, f linkFlags) (a, b end, err error) {
	if f.kubeconfig == "" && f.context == "" {
		return a, b, usagef("which other cluster? Name it with --to-kubeconfig or --to-context")
	}
	if a, err = openEnd(ctx, o, f.name); err != nil {
		return a, b, fmt.Errorf("the first cluster: %w", err)
	}
	if b, err = openEnd(ctx, f.other(o), f.toName); err != nil {
		return a, b, fmt.Errorf("the other cluster: %w", err)
	}
	if a.id == b.id {
		return a, b, errors.New("both are one and the same cluster: name another one with --to-kubeconfig or --to-context")
	}
	return a, b, nil
}

func openEnd(ctx context.Context, o *options, name string) (e end, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	e.Name = cmp.Or(name, contextName(o), "cluster")
	if !validName.MatchString(e.Name) {
		return e, usagef("%q is no name for a cluster, with which its Peers' names begin: want letters, digits and dashes", e.Name)
	}
	if e.config, err = clusterConfig(o); err != nil {
		return e, err
	}
	if e.id, err = cluster.ID(ctx, e.config); err != nil {
		return e, err
	}
	e.stored, err = cluster.ListPeers(ctx, e.config)
	return e, err
}

// read reads a cluster's mesh. services are the ranges of its Services, where they
// are said.
func (p *program) read(ctx context.Context, o *options, e *end, services []string) (err error) {
	if e.config.ServicePrefixes, err = parsePrefixes("service-cidr", services); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	s, warnings, err := cluster.Load(ctx, e.config)
	if err != nil {
		return fmt.Errorf("%s: %w", e.Name, err)
	}
	for _, w := range warnings {
		p.warn(e.Name + ": " + w.String())
	}
	if err := checkMesh(s, o); err != nil {
		return fmt.Errorf("%s: %w (--to-subnet is the other cluster's)", e.Name, err)
	}
	e.Snapshot = p.resolveEndpoints(ctx, s)
	return nil
}

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// contextName is what the kubeconfig calls the cluster, in a form that Peers' names
// can begin with: a kubeadm's kubernetes-admin@east is east.
func contextName(o *options) string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	raw, err := rules.Load()
	if err != nil {
		return ""
	}
	name := cmp.Or(o.context, raw.CurrentContext)
	if at := strings.LastIndexByte(name, '@'); at >= 0 {
		name = name[at+1:]
	}
	return word(name)
}

// word makes a part of an object's name.
func word(s string) string {
	s = regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(s), "-")
	return strings.Trim(s[:min(len(s), 63)], "-")
}

// step is one thing that is done, or need not be, in one cluster.
type step struct {
	what   string   // "add", "change", "keep", "remove"
	peer   api.Peer // of remove and keep as it is stored
	change []string // what of it is new, for change; why, for remove
}

// steps brings what here stores of there to what it should be. Whom here must not
// take it names in its error.
func steps(here, there end, wanted []link.Peer) ([]step, error) {
	made := madeBy(here.stored, there.id)
	var out []step
	names := map[string]bool{}
	for _, w := range wanted {
		peer := linkedPeer(there, w)
		for n := 2; names[peer.Name]; n++ { // two locations that differ in signs alone
			peer.Name = fmt.Sprintf("%s-%d", linkedName(there.Name, w.Location), n)
		}
		was := slices.IndexFunc(made, func(p api.Peer) bool { return p.Annotations[api.LinkedLocation] == w.Location })
		if was >= 0 {
			peer.Name = made[was].Name
		}
		names[peer.Name] = true
		switch {
		case was < 0 && !w.Gateway: // nothing to store yet
		case was < 0:
			if i := slices.IndexFunc(here.stored, func(p api.Peer) bool { return p.Name == peer.Name }); i >= 0 {
				return nil, fmt.Errorf("%s has a Peer %s already, which is something else: call %s by another name", here.Name, peer.Name, there.Name)
			}
			out = append(out, step{what: "add", peer: peer})
		case !w.Gateway:
			out = append(out, step{what: "keep", peer: made[was], change: []string{"no gateway serves its location now"}})
		default:
			if change := differences(made[was], peer); len(change) > 0 {
				out = append(out, step{what: "change", peer: peer, change: change})
			} else {
				out = append(out, step{what: "keep", peer: made[was]})
			}
		}
	}
	for _, p := range made {
		if !names[p.Name] {
			out = append(out, step{what: "remove", peer: p, change: []string{there.Name + " has no such location"}})
		}
	}
	// What is given up comes before it is taken.
	slices.SortStableFunc(out, func(a, b step) int {
		return cmp.Or(cmp.Compare(b2i(a.what != "remove"), b2i(b.what != "remove")), cmp.Compare(b2i(grows(a, made)), b2i(grows(b, made))))
	})
	return out, admissible(here, out)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// grows tells whether a Peer gets prefixes that it has not had.
func grows(s step, made []api.Peer) bool {
	i := slices.IndexFunc(made, func(p api.Peer) bool { return p.Name == s.peer.Name })
	return i < 0 || slices.ContainsFunc(s.peer.Spec.AllowedIPs, func(p string) bool { return !slices.Contains(made[i].Spec.AllowedIPs, p) })
}

// madeBy are the Peers that a link with that cluster made.
func madeBy(stored []api.Peer, id string) []api.Peer {
	return slices.DeleteFunc(slices.Clone(stored), func(p api.Peer) bool { return p.Labels[api.LinkedClusterID] != id })
}

func linkedName(cluster, location string) string {
	return strings.TrimSuffix(cluster+"-"+word(location), "-")
}

func linkedPeer(there end, w link.Peer) api.Peer {
	p := resource(linkedName(there.Name, w.Location), w.Peer)
	p.Labels = map[string]string{api.LinkedCluster: there.Name, api.LinkedClusterID: there.id}
	p.Annotations = map[string]string{api.LinkedLocation: w.Location}
	return p
}

// differences says what of a Peer is new.
func differences(was, now api.Peer) (out []string) {
	if was.Spec.PublicKey != now.Spec.PublicKey {
		out = append(out, "the gateway's key")
	}
	if endpointText(was) != endpointText(now) {
		out = append(out, "endpoint "+cmp.Or(endpointText(now), "none, it speaks first"))
	}
	more, less := beyond(now.Spec.AllowedIPs, was.Spec.AllowedIPs), beyond(was.Spec.AllowedIPs, now.Spec.AllowedIPs)
	if len(more) > 0 {
		out = append(out, "with "+strings.Join(more, ", "))
	}
	if len(less) > 0 {
		out = append(out, "without "+strings.Join(less, ", "))
	}
	if was.Spec.PersistentKeepalive != now.Spec.PersistentKeepalive {
		out = append(out, fmt.Sprintf("keepalive %d s", now.Spec.PersistentKeepalive))
	}
	if was.Labels[api.LinkedCluster] != now.Labels[api.LinkedCluster] {
		out = append(out, "it is called "+now.Labels[api.LinkedCluster])
	}
	return out
}

func endpointText(p api.Peer) string {
	if p.Spec.Endpoint == nil {
		return ""
	}
	return p.Spec.Endpoint.String()
}

// beyond lists what is in a and not in b.
func beyond(a, b []string) (out []string) {
	for _, p := range a {
		if !slices.Contains(b, p) {
			out = append(out, p)
		}
	}
	return out
}

// admissible asks of the Peers to come what the agents would: here, before anything
// is stored.
func admissible(here end, all []step) error {
	s := here.Snapshot
	s.Peers = slices.Clone(s.Peers)
	for _, step := range all {
		if step.what == "remove" {
			continue
		}
		peer, err := cluster.ParsePeer(step.peer)
		if err != nil {
			return fmt.Errorf("peer %s in %s: %w", step.peer.Name, here.Name, err)
		}
		peer.Seq = 1<<63 - 1 // the youngest
		s.Peers = append(s.Peers, peer)
	}
	s.Sort()
	_, refused := cluster.Admit(s)
	for _, w := range refused {
		name := strings.TrimPrefix(w.Object, "peer/")
		if slices.ContainsFunc(all, func(s step) bool { return s.what != "remove" && s.peer.Name == name }) {
			return fmt.Errorf("peer %s in %s: %s", name, here.Name, w.Message)
		}
	}
	return nil
}

// withoutLinked takes the Peers that an earlier link made out of a snapshot.
func withoutLinked(e end, id string) end {
	made := madeBy(e.stored, id)
	peers := e.Snapshot.Peers
	e.Snapshot.Peers = nil
	for _, p := range peers {
		if !slices.ContainsFunc(made, func(m api.Peer) bool { return m.Name == p.Name }) {
			e.Snapshot.Peers = append(e.Snapshot.Peers, p)
		}
	}
	return e
}

// linkPlan is all that link would do.
type linkPlan struct {
	ends  [2]end
	steps [2][]step // in ends of the same index
	notes []string
}

// planLink decides, and does nothing. Its error says what keeps the two apart.
func planLink(a, b end, share []link.What, keepalive time.Duration) (linkPlan, error) {
	a, b = withoutLinked(a, b.id), withoutLinked(b, a.id)
	plan := linkPlan{ends: [2]end{a, b}}
	if found := link.Conflicts(a.Cluster, b.Cluster, share); len(found) > 0 {
		return plan, fmt.Errorf("%s and %s have addresses in common, and are not linked:\n  %s", a.Name, b.Name, strings.Join(found, "\n  "))
	}
	var peers [2][]link.Peer
	for i, here := range plan.ends {
		there := plan.ends[1-i]
		peers[i] = link.Peers(there.Cluster, share, keepalive, servicesAt(here, there))
		var err error
		if plan.steps[i], err = steps(here, there, peers[i]); err != nil {
			return plan, err
		}
		if slices.Contains(share, link.Services) && len(there.Snapshot.ServicePrefixes) == 0 {
			plan.notes = append(plan.notes, fmt.Sprintf("the ranges of Services in %s are not known and left out: say them with --service-cidr or --to-service-cidr", there.Name))
		}
		for _, p := range peers[i] {
			if !p.Gateway {
				plan.notes = append(plan.notes, fmt.Sprintf("location %q of %s has no gateway now", p.Location, there.Name))
			}
		}
	}
	for _, pair := range link.Mute(peers[1], peers[0]) { // a's, b's
		plan.notes = append(plan.notes, fmt.Sprintf("location %q of %s and %q of %s cannot begin to speak with each other, since neither has an endpoint: set kilo.squat.ai/force-endpoint on a node of one", pair[0], a.Name, pair[1], b.Name))
	}
	return plan, nil
}

// servicesAt is the location of there whose Peer has the Services in here already.
func servicesAt(here, there end) string {
	for _, p := range madeBy(here.stored, there.id) {
		for _, prefix := range there.Snapshot.ServicePrefixes {
			if slices.Contains(p.Spec.AllowedIPs, prefix.String()) {
				return p.Annotations[api.LinkedLocation]
			}
		}
	}
	return ""
}

// describe tells one step.
func (s step) describe() string {
	line := fmt.Sprintf("%-7s Peer %s", map[string]string{"add": "added", "change": "changed", "keep": "kept", "remove": "removed"}[s.what], s.peer.Name)
	switch {
	case s.what == "add":
		line += fmt.Sprintf(": %s, %s", cmp.Or(endpointText(s.peer), "it speaks first"), strings.Join(s.peer.Spec.AllowedIPs, ", "))
	case len(s.change) > 0:
		line += ": " + strings.Join(s.change, "; ")
	}
	return line
}

func (p *program) link(ctx context.Context, o *options, f linkFlags) error {
	share, err := link.ParseWhat(f.share)
	if err != nil {
		return usagef("--share: %v", err)
	}
	a, b, err := openEnds(ctx, o, f)
	if err != nil {
		return err
	}
	if err := errors.Join(p.read(ctx, o, &a, f.services), p.read(ctx, f.other(o), &b, f.toServices)); err != nil {
		return err
	}
	plan, err := planLink(a, b, share, time.Duration(f.keepalive)*time.Second)
	if err != nil {
		return err
	}
	for _, note := range plan.notes {
		p.warn(note)
	}
	if f.dryRun {
		fmt.Fprintln(p.out, "nothing is done, this is what would be:")
	}
	do := func(e end, s step) error { return p.do(ctx, e, s) }
	if f.dryRun {
		do = func(end, step) error { return nil }
	}
	return plan.run(p.out, do)
}

// run does all steps and tells each that is done. A step that fails stops nobody.
func (l *linkPlan) run(out io.Writer, do func(end, step) error) error {
	var errs []error
	for i, e := range l.ends {
		if len(l.steps[i]) > 0 {
			fmt.Fprintf(out, "%s:\n", e.Name)
		}
		for _, s := range l.steps[i] {
			if err := do(e, s); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", e.Name, err))
				continue
			}
			fmt.Fprintf(out, "  %s\n", s.describe())
		}
	}
	return errors.Join(errs...)
}

func (p *program) do(ctx context.Context, e end, s step) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	switch s.what {
	case "add":
		_, err := cluster.CreatePeer(ctx, e.config, s.peer)
		return err
	case "change":
		return cluster.UpdatePeer(ctx, e.config, s.peer)
	case "remove":
		return cluster.DeletePeer(ctx, e.config, s.peer.Name)
	}
	return nil
}

func (p *program) unlink(ctx context.Context, o *options, f linkFlags) error {
	a, b, err := openEnds(ctx, o, f)
	if err != nil {
		return fmt.Errorf("%w; kgctl cluster unlink NAME removes the Peers from one cluster alone", err)
	}
	plan := linkPlan{ends: [2]end{a, b}}
	for i, here := range plan.ends {
		for _, peer := range madeBy(here.stored, plan.ends[1-i].id) {
			plan.steps[i] = append(plan.steps[i], step{what: "remove", peer: peer})
		}
	}
	if len(plan.steps[0])+len(plan.steps[1]) == 0 {
		return fmt.Errorf("%s and %s are not linked: neither has a Peer that kgctl cluster link made of the other", a.Name, b.Name)
	}
	return plan.run(p.out, func(e end, s step) error { return p.do(ctx, e, s) })
}

func (p *program) unlinkOne(ctx context.Context, o *options, name string) error {
	config, err := clusterConfig(o)
	if err != nil {
		return err
	}
	listing, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	e := end{Cluster: link.Cluster{Name: cmp.Or(contextName(o), "this cluster")}, config: config}
	if e.stored, err = cluster.ListPeers(listing, config); err != nil {
		return err
	}
	plan := linkPlan{ends: [2]end{e}}
	for _, peer := range e.stored {
		if peer.Labels[api.LinkedCluster] == name {
			plan.steps[0] = append(plan.steps[0], step{what: "remove", peer: peer})
		}
	}
	if len(plan.steps[0]) == 0 {
		return fmt.Errorf("no Peer has the label %s=%s; see: kubectl get peers -L %[1]s", api.LinkedCluster, name)
	}
	return plan.run(p.out, func(e end, s step) error { return p.do(ctx, e, s) })
}
