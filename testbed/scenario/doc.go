// Package scenario holds the tests that need a whole cluster: each brings up a
// lab of its own, does one thing to it, and looks at what pods, wires and the
// API server see. They take seconds each and run as root on Linux:
//
//	go test ./testbed/scenario -run TestTwoLabsAtOnce -v
//
// What a machine lacks for a lab fails the test. A run that sets KILO_LAB_SKIP
// to a reason skips instead.
//
// A scenario fits on one screen. What it takes more than once is in
// lab_test.go.
package scenario
