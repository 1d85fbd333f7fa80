package main

import (
	"io"
	"path/filepath"
	"time"

	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/wgshow"
)

// wgName is the other name that kg answers to: an image that holds nothing but kg
// can be asked "wg show" all the same.
const wgName = "wg"

// calledWG tells whether a command line is one for wg, and returns its arguments.
func calledWG(name string, args []string) ([]string, bool) {
	if filepath.Base(name) == wgName {
		return args, true
	}
	if len(args) > 0 && args[0] == wgName {
		return args[1:], true
	}
	return nil, false
}

func showWireGuard(args []string, out io.Writer) error {
	devices, err := kernel.Devices()
	if err != nil {
		return err
	}
	return wgshow.Print(devices, args, time.Now(), out)
}
