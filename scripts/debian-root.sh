#!/usr/bin/env bash
# What the tests of packages install into: .tools/debian-SUITE, a minimal Debian or Ubuntu made by debootstrap. SUITE is KVPLANE_DEBIAN,
# or this machine's own. Does nothing when it is there already. Where it cannot be made, says so and succeeds: the tests are skipped then.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped() {
    echo "debian-root: $*; tests that install into a clean Debian are skipped" >&2
    exit 0
}

# shellcheck source=/dev/null
suite=${KVPLANE_DEBIAN:-$(. /etc/os-release && echo "${VERSION_CODENAME:-}")}
[[ -n $suite ]] || skipped "this machine names no suite of Debian or Ubuntu: set KVPLANE_DEBIAN"
root=.tools/debian-$suite
[[ -d $root ]] && exit 0
[[ $(id -u) == 0 ]] || skipped "only root can make a root directory"
if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null || skipped "debootstrap is missing"
    echo "debian-root: installing debootstrap" >&2
    scripts/retry.sh bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap' >&2 ||
        skipped "debootstrap could not be installed"
fi
mkdir -p .tools
rm -rf "$root.new"
if ! debootstrap --variant=minbase "$suite" "$root.new" >&2; then
    rm -rf "$root.new"
    skipped "debootstrap could not make $suite"
fi
# Packages are tested, not downloaded.
rm -rf "$root.new"/var/cache/apt/archives/*.deb "$root.new"/var/lib/apt/lists/*
mv "$root.new" "$root"
