// Package scenario holds the tests that need a whole cluster: each does one
// thing to a lab and looks at what pods, wires and the API server see. They take
// seconds each and run as root on Linux:
//
//	go test ./testbed/scenario -run TestIslands/partition -v
//	go test ./testbed/scenario -run TestMesh/laptop -v
//
// A lab takes most of a minute to come up, so scenarios share them: what leaves
// the mesh whole behind it runs on the lab of TestMesh, what needs no agent on
// that of TestIslands. They run one at a time, since many count packets or hold
// repairs against a second; at rest for ten minutes (KILO_LAB_REST) is one that
// waits behind all others.
//
// KILO_TEST_ALL adds what make test leaves out: more modes of Cilium, failover in
// the data path, two clusters at once, ten minutes without an API server, abuse.
//
// What a machine lacks for a lab fails the test. A run that sets KILO_LAB_SKIP
// to a reason skips instead.
//
// A scenario fits on one screen. What it takes more than once is in lab_test.go
// (labs), observe_test.go (looking), wire_test.go (captures of every wire).
package scenario
