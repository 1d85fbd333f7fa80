package kerneltest_test

import (
	"testing"

	"github.com/kilo-overlay/kilo/core/kerneltest"
	"github.com/kilo-overlay/kilo/core/model"
)

func TestSuite(t *testing.T) {
	kerneltest.Suite(t, func(*testing.T) kerneltest.Fixture {
		return kerneltest.New("kilo0", model.Key{1, 2, 3})
	})
}
