package scenario

import (
	"flag"
	"os"
	"testing"
)

// Tests that run in parallel mostly wait, so more of them than there are CPUs
// do no harm. The command line's -parallel still wins.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
