package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// archive writes a cpio archive in the format that the kernel unpacks ("newc",
// Documentation/driver-api/early-userspace/buffer-format.rst). The first error
// sticks; close returns it.
type archive struct {
	w    io.Writer
	at   int64
	made map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive { return &archive{w: w, made: map[string]bool{}} }

// entry writes one entry with the directories above it. A name that is there
// already is left out: several programs share libraries.
func (a *archive) entry(name string, mode uint32, size int64, content io.Reader, major, minor uint32) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if a.err != nil || a.made[name] {
		return
	}
	if parent := path.Dir(name); parent != "." {
		a.directory(parent)
	}
	a.made[name] = true
	a.header(name, mode, size, major, minor)
	if a.err != nil || content == nil {
		return
	}
	n, err := io.Copy(a.w, io.LimitReader(content, size))
	if err == nil && n != size {
		err = fmt.Errorf("%s: %d bytes, expected %d", name, n, size)
	}
	a.at += n
	a.err = errors.Join(a.err, err)
	a.pad()
}

func (a *archive) header(name string, mode uint32, size int64, major, minor uint32) {
	// magic, inode, mode, uid, gid, links, mtime, size, device, device of a
	// device file, length of the name with its NUL, checksum.
	inode := uint32(len(a.made) + 1)
	text := "070701"
	for _, field := range []uint32{inode, mode, 0, 0, 1, 0, uint32(size), 0, 0, major, minor, uint32(len(name) + 1), 0} {
		text += fmt.Sprintf("%08x", field)
	}
	a.write([]byte(text + name + "\x00"))
	a.pad()
}

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(b)
	a.at += int64(n)
	a.err = err
}

// pad fills up to a multiple of four bytes.
func (a *archive) pad() { a.write(make([]byte, (4-a.at%4)%4)) }

func (a *archive) directory(name string) { a.entry(name, unix.S_IFDIR|0o755, 0, nil, 0, 0) }

func (a *archive) link(name, to string) {
	a.entry(name, unix.S_IFLNK|0o777, int64(len(to)), strings.NewReader(to), 0, 0)
}

// console is what the first process's output goes to before it mounts /dev.
func (a *archive) console() { a.entry("dev/console", unix.S_IFCHR|0o600, 0, nil, 5, 1) }

func (a *archive) file(name string, mode uint32, content []byte) {
	a.entry(name, unix.S_IFREG|mode, int64(len(content)), bytes.NewReader(content), 0, 0)
}

// copy takes over a file of this machine.
func (a *archive) copy(name, from string, mode uint32) {
	if a.err != nil {
		return
	}
	f, err := os.Open(from)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.entry(name, unix.S_IFREG|mode, info.Size(), f, 0, 0)
}

// program takes over a program and the shared libraries that it needs.
func (a *archive) program(name, from string) {
	if a.err != nil {
		return
	}
	libraries, err := libraries(from)
	if err != nil {
		a.err = err
		return
	}
	a.copy(name, from, 0o755)
	for _, l := range libraries {
		a.copy(merged(l), l, 0o755)
	}
}

// merged is a path in a file system with one /usr.
func merged(p string) string {
	for _, d := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(p, d) {
			return "/usr" + p
		}
	}
	return p
}

// libraries lists the files that a program needs to be loaded, as ldd finds
// them; none for one that is static.
func libraries(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if strings.Contains(string(out), "not a dynamic executable") || strings.Contains(string(out), "statically linked") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", "/lib64/ld-linux… (0x…)",
		// and one that the kernel itself brings, without a path.
		words := strings.Fields(line)
		switch {
		case len(words) >= 3 && words[1] == "=>" && strings.HasPrefix(words[2], "/"):
			found = append(found, words[2])
		case len(words) >= 3 && words[1] == "=>":
			return nil, fmt.Errorf("ldd %s: %s", program, strings.TrimSpace(line))
		case len(words) > 0 && strings.HasPrefix(words[0], "/"):
			found = append(found, words[0])
		}
	}
	return found, nil
}

func (a *archive) close() error {
	a.header("TRAILER!!!", 0, 0, 0, 0)
	return a.err
}
