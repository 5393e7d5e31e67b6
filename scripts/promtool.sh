#!/usr/bin/env bash
# Prints where promtool is. Where it is not installed, Debian's package of Prometheus is fetched and unpacked into .tools: installed,
# it would start a server.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "promtool: $*" >&2
    exit 1
}

if command -v promtool; then
    exit 0
fi
unpacked=$PWD/.tools/prometheus
tool=$unpacked/usr/bin/promtool
if [[ ! -x $tool ]]; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        fail "it is not installed: install Prometheus with your system's packages, so that promtool is in PATH"
    fetched=$(mktemp -d)
    trap 'rm -rf "$fetched"' EXIT
    fetch() { (cd "$fetched" && apt-get -qq -o APT::Sandbox::User=root download prometheus >&2); }
    echo "promtool: fetching Debian's package prometheus" >&2
    if ! fetch 2>/dev/null; then
        # Lists of packages are missing or old; only root may renew them.
        [[ $(id -u) == 0 ]] || fail "it is not installed: as root, run 'apt-get install prometheus' (or 'apt-get update', then try again)"
        scripts/retry.sh apt-get update -qq >&2 || fail "'apt-get update' failed: look at what it says"
        fetch || fail "Debian's package prometheus could not be fetched: run 'apt-get download prometheus' and look at what it says"
    fi
    mkdir -p "$unpacked"
    dpkg-deb -x "$fetched"/prometheus_*.deb "$unpacked"
fi
"$tool" --version >/dev/null 2>&1 || fail "$tool does not run here: install Debian's package prometheus"
echo "$tool"
