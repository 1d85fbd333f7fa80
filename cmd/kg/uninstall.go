package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"k8s.io/client-go/rest"

	"github.com/kilo-overlay/kilo/core/agent"
	"github.com/kilo-overlay/kilo/core/cluster"
	"github.com/kilo-overlay/kilo/core/identity"
	"github.com/kilo-overlay/kilo/core/kernel"
	"github.com/kilo-overlay/kilo/core/state"
)

const uninstallTimeout = time.Minute

// uninstall removes everything of the mesh from this node, and what the agent
// wrote to its Node. The node comes first and needs no API server. What could
// not be removed is said, and is an error.
func uninstall(ctx context.Context, o *options, out, logTo io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, uninstallTimeout)
	defer cancel()
	for _, file := range []string{lockFile, deviceLockFile} {
		unlock, err := lock(ctx, o.stateDir, file, 0)
		if errors.Is(err, errRuns) {
			return fmt.Errorf("%w, and would put back what is removed: end it first (remove the DaemonSet, or this node from it)", err)
		}
		if err != nil {
			return err
		}
		defer unlock()
	}

	// The key tells our own link from a stranger's. None is made for that.
	keyPath := filepath.Join(o.stateDir, keyFile)
	var private wgtypes.Key
	if _, err := os.Lstat(keyPath); err == nil {
		if private, _, err = identity.Load(keyPath); err != nil {
			fmt.Fprintf(out, "the key is not readable, and not needed: %v\n", err)
		}
	}
	log := newLog(logTo, o.logLevel.value)
	failed := errors.Join(
		restoreForeign(ctx, o, log, out), // needs the record that is among the files
		removeFromKernel(ctx, o, private, log, out),
		removeSockets(o.iface),
		removeFiles(o.stateDir, o.purge, out),
	)
	if err := removeFromCluster(ctx, o, log, out); err != nil {
		failed = errors.Join(failed, fmt.Errorf("the Node %s still carries what the agent wrote: %w\n"+
			"run \"kg uninstall\" again when the API server answers, or remove annotations and labels kilo.squat.ai/* by hand (annotations that you set yourself, such as kilo.squat.ai/location, are yours)", o.hostname, err))
	}
	if failed == nil {
		fmt.Fprintln(out, "nothing of the mesh is left on this node")
	}
	return failed
}

// restoreForeign undoes what was changed of others. The record stays while some
// of it is left.
func restoreForeign(ctx context.Context, o *options, log *slog.Logger, out io.Writer) error {
	done, err := agent.TakeAcceptsOut(ctx, kernel.NewForward(log), o.stateDir)
	for _, c := range done {
		fmt.Fprintf(out, "done: %s\n", c)
	}
	if err != nil {
		return fmt.Errorf("not everything could be taken out of the FORWARD chains of others: %w", err)
	}
	return nil
}

func removeFiles(dir string, purge bool, out io.Writer) error {
	names := []string{"snapshot.json", "psk.json", agent.ClaimsFile, lockFile, deviceLockFile}
	if purge {
		names = append(names, keyFile)
	}
	var errs []error
	for _, name := range names {
		err := os.Remove(filepath.Join(dir, name))
		switch {
		case err == nil && name != lockFile && name != deviceLockFile:
			fmt.Fprintf(out, "removed %s\n", filepath.Join(dir, name))
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, keyFile)); err == nil {
		fmt.Fprintf(out, "kept %s, so that the node is the same party to everyone if it comes back; --purge removes it\n", filepath.Join(dir, keyFile))
	} else {
		_ = os.Remove(dir) // a directory with anything else in it stays
	}
	return errors.Join(errs...)
}

// removeSockets removes the control sockets that userspace devices left behind
// when their process was killed. One that answers is somebody's.
func removeSockets(first string) error {
	var failed error
	for _, name := range state.TunnelLinks(first) {
		failed = errors.Join(failed, removeSocket(name))
	}
	return failed
}

func removeSocket(iface string) error {
	path := filepath.Join("/var/run/wireguard", iface+".sock")
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func removeFromCluster(ctx context.Context, o *options, log *slog.Logger, out io.Writer) error {
	api, err := restConfig(o, rest.InClusterConfig, log)
	if err != nil {
		return err
	}
	api.Timeout = 15 * time.Second
	writes := countWrites(api)
	if err := cluster.New(cluster.Config{REST: api, Node: o.hostname, TopologyLabel: o.topologyLabel, Version: version()}).Clear(ctx); err != nil {
		return err
	}
	if writes() > 0 {
		fmt.Fprintf(out, "removed the agent's annotations, labels and condition from Node %s\n", o.hostname)
	}
	return nil
}

func removeFromKernel(ctx context.Context, o *options, private wgtypes.Key, log *slog.Logger, out io.Writer) error {
	k, err := kernel.New(kernel.Options{Interface: o.iface, PrivateKey: private, Log: log})
	if err != nil {
		return err
	}
	defer k.Close()
	report, err := agent.RemoveAll(ctx, k, true)
	for _, c := range report.Done {
		fmt.Fprintf(out, "removed: %s\n", c)
	}
	if err != nil {
		return fmt.Errorf("not everything could be removed from the kernel: %w", err)
	}
	return nil
}
