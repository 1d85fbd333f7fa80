// Package nstest runs tests against the real kernel, each in a network and a
// mount namespace of its own, so that they see an empty machine and leave
// nothing behind.
//
// Goroutines wander between threads and a namespace belongs to a thread, so a
// test is not moved into one: Run starts the test binary again, inside fresh
// namespaces, for that test alone. More nodes are more processes; see Start.
//
// The tests need root. Without it they fail, unless KILO_TEST_SKIP_ROOT gives
// the reason why they are to be skipped.
package nstest
