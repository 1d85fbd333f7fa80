package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/kilo-overlay/kilo/core/render"
)

// The files of a bug report.
const (
	reportSnapshot = "snapshot.json" // model.Snapshot: the planner takes it as it is
	reportWarnings = "warnings.json" // what is wrong in the cluster
	reportAgents   = "agents.json"   // what each agent says, by node
	reportSilent   = "silent.json"   // why others say nothing, by node
	reportFindings = "findings.json" // what kgctl check makes of it
	reportStatus   = "status.txt"    // kgctl status
	reportGraph    = "mesh.svg"
	reportAbout    = "about.json"
)

func bugreport(p *program, o *options) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "bugreport", Short: "Put everything that a maintainer would ask for into one file", Args: takes(),
		Long: `Writes an archive (tar, gzip) with what the cluster and the agents say of the
mesh: nodes, Peers, addresses, public keys, links, warnings, and what kgctl check
finds. Private and preshared keys are not in it: of the latter there are
fingerprints. Names and addresses are; look it through before you hand it on.

A maintainer plans with snapshot.json as the agents do.`,
		Example: "  kgctl bugreport\n  kgctl bugreport --direct --file mesh.tar.gz",
	}
	o.liveFlags(c.Flags())
	c.Flags().StringVar(&file, "file", "", "where to write it; - is standard output (default kilo-bugreport-TIME.tar.gz)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		files, err := p.report(c.Context(), o)
		if err != nil {
			return err
		}
		if file == "-" {
			return writeArchive(p.out, files, time.Now())
		}
		if file == "" {
			file = "kilo-bugreport-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
		}
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(writeArchive(out, files, time.Now()), out.Close()); err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.err, "kgctl: written to "+file)
		return err
	}
	return c
}

// reportFile is one file of a bug report.
type reportFile struct {
	name string
	text []byte
}

// report collects the files. Values that hold secrets print fingerprints only:
// that is how their types are made.
func (p *program) report(ctx context.Context, o *options) ([]reportFile, error) {
	s, warnings, err := p.load(ctx, o)
	if err != nil {
		return nil, err
	}
	live, silent := p.agents(ctx, o, s)
	now := time.Now()
	about := map[string]string{
		"kgctl": release(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "time": now.UTC().Format(time.RFC3339),
	}
	var files []reportFile
	var failed error
	add := func(name string, value any) {
		text, err := json.MarshalIndent(value, "", "  ")
		failed = errors.Join(failed, err)
		files = append(files, reportFile{name, append(text, '\n')})
	}
	add(reportAbout, about)
	add(reportSnapshot, s)
	add(reportWarnings, nonNil(warnings))
	add(reportAgents, live)
	add(reportSilent, silent)
	add(reportFindings, nonNil(render.Findings(s, warnings, live, silent, now)))
	files = append(files,
		reportFile{reportStatus, []byte(render.Look(s, warnings, live, silent).Text(now))},
		reportFile{reportGraph, []byte(render.Draw(s).SVG())})
	return files, failed
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func writeArchive(w io.Writer, files []reportFile, at time.Time) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: "kilo-bugreport/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: at}); err != nil {
			return err
		}
		if _, err := t.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}
