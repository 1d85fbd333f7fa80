package flannel

import (
	"context"
	"os"
	"time"
)

// Watch implements adapter.Adapter for Flannel's files, by looking at them
// now and then: some calls of stat(2) every two seconds cost nothing, and
// unlike inotify need no directory that exists before Flannel ever ran. Links,
// routes and annotations have watches of their own in the agent.
func (a *Adapter) Watch(ctx context.Context, changed func()) error {
	tick := time.NewTicker(a.o.PollEvery)
	defer tick.Stop()
	seen, beside := a.lookAtFiles(), a.besideCilium()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		now, nowBeside := a.lookAtFiles(), a.besideCilium()
		if !sameFiles(seen, now) || beside != nowBeside {
			changed()
		}
		seen, beside = now, nowBeside
	}
}

// lookAtFiles returns what stat(2) says of each file, nil for one that is not
// there.
func (a *Adapter) lookAtFiles() []os.FileInfo {
	var infos []os.FileInfo
	for _, name := range append([]string{a.o.SubnetFile}, a.o.NetConfFiles...) {
		info, err := os.Stat(name)
		if err != nil {
			info = nil
		}
		infos = append(infos, info)
	}
	return infos
}

// sameFiles tells whether nothing was written or put in place of something
// else. Flannel replaces subnet.env by renaming, so the time alone may not
// change on a coarse clock, but the file does.
func sameFiles(a, b []os.FileInfo) bool {
	for i := range a {
		switch {
		case a[i] == nil && b[i] == nil:
		case a[i] == nil || b[i] == nil:
			return false
		case !os.SameFile(a[i], b[i]) || !a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size():
			return false
		}
	}
	return true
}
