package wireguard

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// repeatAfter is how long one and the same complaint of the device is kept
// from the log. An unreachable peer would fill a line every five seconds.
const repeatAfter = 10 * time.Minute

// logger hands wireguard-go's lines to slog: its chatter as debug, its errors
// as warnings, each kind of error once in a while. It never prints keys in full.
func logger(log *slog.Logger, name string) *device.Logger {
	log = log.With("interface", name)
	var mu sync.Mutex
	said := map[string]time.Time{}
	return &device.Logger{
		Verbosef: func(format string, args ...any) { log.Debug(fmt.Sprintf(format, args...)) },
		Errorf: func(format string, args ...any) {
			line := fmt.Sprintf(format, args...)
			mu.Lock()
			now := time.Now()
			again := now.Sub(said[format]) < repeatAfter
			if !again {
				said[format] = now
			}
			mu.Unlock()
			if again {
				log.Debug(line)
				return
			}
			log.Warn(line)
		},
	}
}
