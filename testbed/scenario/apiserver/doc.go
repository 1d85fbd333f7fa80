// Package apiserver tests core/cluster against a real API server, with etcd
// and the product's own manifests, without a lab around them: what a watch,
// a merge patch, a definition that comes late or a server that goes away are
// like is the API server's to say.
package apiserver
