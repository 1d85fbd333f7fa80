// Package scenario holds the tests that need a whole cluster: each does one
// thing to a lab and looks at what pods, wires and the API server see. They take
// seconds each and run as root on Linux:
//
//	go test ./testbed/scenario -run TestTwoLabsAtOnce -v
//	go test ./testbed/scenario -run TestMesh/laptop -v
//
// What leaves the mesh whole behind it shares the lab of TestMesh; the others
// bring up their own. Those that mostly wait do so together, in parallel; at
// rest for ten minutes (KILO_LAB_REST) is one that waits behind all others.
//
// KILO_TEST_ALL adds what make test leaves out: more modes of Cilium.
//
// What a machine lacks for a lab fails the test. A run that sets KILO_LAB_SKIP
// to a reason skips instead.
//
// A scenario fits on one screen. What it takes more than once is in lab_test.go
// (labs), observe_test.go (looking), wire_test.go (captures of every wire).
package scenario
