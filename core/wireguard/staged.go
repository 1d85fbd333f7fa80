package wireguard

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// stagedEvery is how often the device is looked at for packets that wait in vain.
// It is longer than the pause between two handshake attempts (5.3 s at most), so
// that a device that goes on trying has tried between any two looks.
const stagedEvery = 10 * time.Second

// staged frees what waits in the device for peers that do not answer. A packet
// without a session waits for a handshake, up to 128 of them for each peer, and
// wireguard-go keeps every one in a buffer of 64 KiB: 8 MiB a peer. It drops them
// when it gives up, after a minute and a half, but each further packet begins that
// time anew, and so a peer that somebody goes on asking keeps its 8 MiB for as long
// as it is away.
//
// A peer whose handshakes have failed from one look to the next loses what waits
// for it. Attempts go on, and what is sent later waits anew: nothing but packets of
// an outage that has lasted ten seconds is lost.
type staged struct {
	peers map[device.NoisePublicKey]trying
}

// trying is what a look found of a peer without a session.
type trying struct {
	sent  uint64 // bytes in all, handshake attempts included
	tries bool   // it had sent something since the look before
}

// peerState is what the device tells of a peer.
type peerState struct {
	key       device.NoisePublicKey
	endpoint  bool
	handshake time.Time // zero: none
	sent      uint64
}

// judge takes what a look found and returns the peers that have been without a
// session since the last one although the device tried to reach them, or could
// not even try.
func (s *staged) judge(found []peerState, now time.Time) (inVain []device.NoisePublicKey) {
	next := map[device.NoisePublicKey]trying{}
	for _, p := range found {
		if !p.handshake.IsZero() && now.Sub(p.handshake) < device.RejectAfterTime {
			continue
		}
		before, known := s.peers[p.key]
		tries := known && p.sent > before.sent
		next[p.key] = trying{p.sent, tries}
		// One that began to try a moment ago may be answered in the next.
		if known && (!p.endpoint || tries && before.tries) {
			inVain = append(inVain, p.key)
		}
	}
	s.peers = next
	return inVain
}

// keepStaged looks after the device until it is closed.
func (u *userspace) keepStaged(every time.Duration) {
	var s staged
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-u.done:
			return
		case now := <-tick.C:
			u.dropStaged(&s, now)
		}
	}
}

func (u *userspace) dropStaged(s *staged, now time.Time) {
	text, err := u.device.IpcGet()
	if err != nil {
		return // it is being closed
	}
	for _, key := range s.judge(peerStates(text), now) {
		if p := u.device.LookupPeer(key); p != nil {
			p.FlushStagedPackets()
		}
	}
}

// peerStates reads the device's own words, lines of key=value in which each peer
// begins with its public_key. The private key is among them: they go nowhere else.
func peerStates(text string) (out []peerState) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if name == "public_key" {
			var p peerState
			if n, err := hex.Decode(p.key[:], []byte(value)); err != nil || n != len(p.key) {
				return out // no device says so
			}
			out = append(out, p)
			continue
		}
		if len(out) == 0 {
			continue
		}
		p := &out[len(out)-1]
		switch name {
		case "endpoint":
			p.endpoint = true
		case "last_handshake_time_sec":
			if sec, err := strconv.ParseInt(value, 10, 64); err == nil && sec > 0 {
				p.handshake = time.Unix(sec, 0)
			}
		case "tx_bytes":
			p.sent, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	return out
}
