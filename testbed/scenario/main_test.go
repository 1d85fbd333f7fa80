package scenario

import (
	"flag"
	"os"
	"testing"
)

// How many labs run at a time is up to beside; a test that only waits takes no
// place from others. The command line's -parallel still wins.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// places are those of tests that run beside others. A lab's programs keep less
// than one CPU busy, most of the time.
var places = make(chan struct{}, 2)

// beside lets a test run while others do that call it, two at a time. It is for
// those whose answer is the same on a slow machine: who counts lost packets, or
// holds a repair against a second, runs alone, before them.
func beside(t *testing.T) {
	t.Helper()
	t.Parallel()
	places <- struct{}{}
	t.Cleanup(func() { <-places })
}
