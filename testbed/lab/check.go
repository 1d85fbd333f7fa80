package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// programs that the lab and its scenarios call by name, and the Debian package
// that each is in.
func programs() [][2]string {
	return [][2]string{
		{"/usr/bin/nsenter", "util-linux"},
		{"/usr/sbin/ip", "iproute2"},
		{"/usr/sbin/nft", "nftables"},
		{"/usr/sbin/iptables", "iptables"},
		{"/usr/sbin/conntrack", "conntrack"},
		{"/usr/sbin/sysctl", "procps"},
		{"/usr/bin/ping", "iputils-ping"},
		{tcpdump, "tcpdump"},
	}
}

// Check tells what this machine lacks for a lab, in one error that says how to
// get it; nil if a lab can come up.
func Check() error {
	var problems []error
	if os.Geteuid() != 0 {
		problems = append(problems, errors.New("the lab makes namespaces and interfaces: run it as root"))
	}
	var packages []string
	for _, p := range programs() {
		if _, err := os.Stat(p[0]); err != nil {
			problems = append(problems, fmt.Errorf("%s is missing", p[0]))
			packages = append(packages, p[1])
		}
	}
	if packages != nil {
		problems = append(problems, fmt.Errorf("install what is missing: apt-get install %s (or run testbed/setup.sh)", strings.Join(packages, " ")))
	}
	if _, err := exec.LookPath("go"); err != nil {
		problems = append(problems, errors.New("the lab builds its programs: Go is not in PATH"))
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		problems = append(problems, errors.New("/dev/net/tun is missing: where the kernel has no WireGuard, agents need TUN (modprobe tun)"))
	}
	if text, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(text), "\toverlay\n") {
		problems = append(problems, errors.New("the kernel offers no overlay file system (modprobe overlay)"))
	}
	if _, err := labGroups(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
