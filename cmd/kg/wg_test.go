package main

import (
	"strings"
	"testing"
)

func TestCalledWG(t *testing.T) {
	for _, c := range []struct {
		name string
		args string
		want bool
	}{
		{"/usr/bin/wg", "show", true}, {"wg", "", true}, {"/usr/bin/kg", "wg show", true},
		{"/usr/bin/kg", "wireguard", false}, {"kg", "", false}, {"kg", "--interface=wg", false},
	} {
		if _, got := calledWG(c.name, strings.Fields(c.args)); got != c.want {
			t.Errorf("%s %s: %v", c.name, c.args, got)
		}
	}
}
