package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kilo-overlay/kilo/testbed/bench/onechange/count"
	"github.com/kilo-overlay/kilo/testbed/guest"
)

// oneChange boots a guest and counts there what one node's change costs.
func oneChange(ctx context.Context, r *report) error {
	if err := guest.Check(); err != nil {
		return err
	}
	kernel, err := guest.FindKernel(ctx, r.say)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kilo-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g := guest.Guest{
		Init:     filepath.Join(dir, "init"),
		Commands: []guest.Command{{Args: []string{"/usr/bin/onechange"}}},
		Files:    map[string][]byte{"/etc/protocols": []byte("icmp 1\ntcp 6\nudp 17\n")},
	}
	if g.Programs, err = guest.HostPrograms("sh", "ip"); err != nil {
		return err
	}
	if err := guest.Build(ctx, g.Init, "./testbed/guest/init"); err != nil {
		return err
	}
	g.Programs["/usr/bin/onechange"] = filepath.Join(dir, "onechange")
	if err := guest.Build(ctx, filepath.Join(dir, "onechange"), "./testbed/bench/onechange"); err != nil {
		return err
	}
	ended, err := g.Boot(ctx, kernel, dir, guest.Here)
	if err != nil {
		return err
	}
	if ended[0].Code != 0 {
		return fmt.Errorf("onechange: exit code %d:\n%s", ended[0].Code, ended[0].Output)
	}
	r.section("One node's change in a mesh of 1,000 nodes in 20 locations",
		fmt.Sprintf("Messages to the kernel, WireGuard's own included, as nlmon shows them on Linux %s. *read* are the questions of "+
			"one pass, which looks before and after it changes something; *nft* is messages in one transaction.", kernel.Version))
	t := r.table("on a", "what happens", "Changes", "WireGuard", "routes", "nft", "nft bytes", "read")
	rows := 0
	for line := range strings.Lines(ended[0].Output) {
		var c count.Count
		if json.Unmarshal([]byte(line), &c) != nil || c.Role == "" {
			continue
		}
		rows++
		m := c.Messages
		t.row(c.Role, c.What, kinds(c.Changes), m.WireGuard, m.Routes, m.NFTables, m.Bytes, m.Reads)
	}
	if rows == 0 {
		return fmt.Errorf("onechange printed no count:\n%s", ended[0].Output)
	}
	return nil
}

// kinds lists Changes by type, most often few.
func kinds(changes map[string]int) string {
	var out []string
	for k, n := range changes {
		out = append(out, fmt.Sprintf("%d %s", n, k))
	}
	slices.Sort(out)
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}
