// Package self decides what a node says about itself: its location, its
// internal address, where it can be reached. It is pure; core/agent feeds it
// and core/cluster publishes the result.
//
// What the agent published earlier is never an input here: an address that
// changed, or an annotation that was taken away, shows in the next Decide.
//
// Start with Decide and the tests beside it, which are a table of interfaces and
// what becomes of them. special.go has the ranges that are nobody's public
// address.
package self
