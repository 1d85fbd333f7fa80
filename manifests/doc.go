// Package manifests holds what is applied to a cluster. The chart in helm/kilo is
// the source; crds.yaml is made from the types in core/api, all other files from
// the chart by "make manifests" (tool/, a module of its own).
//
// There is no code here: the tests hold the manifests to what the agent does.
package manifests
