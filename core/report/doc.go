// Package report holds what an agent tells about itself at /status, as plain
// values: the agent fills them, kgctl reads them wherever it runs. No secret is
// among them.
//
// Start with Status.
package report
