#!/bin/bash
# Installs the Debian packages that the lab and the tests use, those that are
# missing and no others. Says nothing when all are there.
#
#   testbed/setup.sh          what a lab with Flannel needs
#   testbed/setup.sh cilium   and what one with Cilium needs
#   testbed/setup.sh CNI image   and what builds kg's image
set -euo pipefail

packages=(
	ca-certificates # Go fetches modules
	conntrack       # flows, for scenarios about NAT
	graphviz        # draws what kgctl graph prints
	iperf3          # throughput
	ipset           # kube-proxy
	iproute2        # ip, for people and for scenarios that look as an operator does
	iptables        # Flannel and kube-proxy call it
	iputils-ping    # the matrix
	jq
	kmod            # modules, where the kernel has any
	make
	nftables        # nft, the reference for our table's text
	procps          # sysctl
	qemu-system-x86 # a machine whose kernel has WireGuard
	tcpdump         # captures
	wireguard-tools
)

case "${1:-}" in
'' | flannel | none) ;;
*cilium*) packages+=(clang-19) ;; # compiles Cilium's programs for the kernel
*)
	echo "setup: no CNI is called $1: want flannel, cilium or flannel+cilium" >&2
	exit 2
	;;
esac

[ "${2:-}" != image ] || packages+=(buildah)

installed() {
	[ "$(dpkg-query --show --showformat '${db:Status-Abbrev}' "$1" 2>/dev/null)" = 'ii ' ]
}

if ! command -v apt-get >/dev/null; then
	needed=(conntrack dot iperf3 ip ipset iptables jq make nft ping qemu-system-x86_64 sysctl tcpdump wg)
	missing=()
	for command in "${needed[@]}"; do
		command -v "$command" >/dev/null || missing+=("$command")
	done
	if [ ${#missing[@]} -gt 0 ]; then
		echo "setup: this is no Debian system; please install by hand: ${missing[*]}" >&2
		exit 1
	fi
	exit 0
fi

missing=()
for package in "${packages[@]}"; do
	installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
	echo "setup: missing packages: ${missing[*]}; run as root, the lab needs it as well" >&2
	exit 1
fi

# Another installation may hold the lock (a fresh machine updates itself), and
# a mirror may hiccup: wait, and try again.
export DEBIAN_FRONTEND=noninteractive
apt() {
	apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for attempt in 1 2 3; do
	if { apt update && apt install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
		exit 0
	fi
	echo "setup: attempt $attempt of 3 failed: $(grep -E '^(E|Err):?' "$log" | tail -n 1)" >&2
	sleep $((attempt * 5))
done
echo "setup: the packages could not be installed; apt-get said:" >&2
tail -n 30 "$log" >&2
exit 1
