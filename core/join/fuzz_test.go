package join

import (
	"bytes"
	"io"
	"net/netip"
	"testing"
)

// client is what a SOCKS client sends, and takes whatever it is told.
type client struct{ *bytes.Reader }

func (client) Write(b []byte) (int, error) { return len(b), nil }

// Whatever a client sends, no more is read than its greeting and its request, which
// begin with a version, and where it wants to go is an address or a name.
func FuzzGreet(f *testing.F) {
	for _, seed := range []string{
		"\x05\x01\x00\x05\x01\x00\x01\x0a\x00\x00\x01\x00\x50rest",
		"\x05\x01\x00\x05\x01\x00\x03\x04name\x01\xbb",
		"\x05\x02\x01\x00\x05\x01\x00\x04" + string(make([]byte, 16)) + "\x00\x35",
		"\x05\x01\x00\x05\x02\x00\x01",
		"\x04\x01",
		"GET / HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := client{bytes.NewReader(sent)}
		host, _, err := greet(c)
		if err != nil {
			return
		}
		left, _ := io.ReadAll(c)
		read := sent[:len(sent)-len(left)]
		methods := int(sent[1])
		request := read[2+methods:]
		if sent[0] != 5 || request[0] != 5 {
			t.Fatalf("%q was taken for SOCKS5", read)
		}
		if request[3] == 3 {
			if len(host) != int(request[4]) {
				t.Fatalf("%q asks for %q", read, host)
			}
		} else if _, err := netip.ParseAddr(host); err != nil {
			t.Fatalf("%q asks for the address %q", read, host)
		}
	})
}
