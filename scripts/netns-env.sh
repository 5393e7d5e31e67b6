#!/usr/bin/env bash
# What the tests of silent paths need: `ip` and `tc` of iproute2. Installs it where that is possible; where it is not, the
# tests are skipped, and say so.
set -euo pipefail

if command -v ip >/dev/null && command -v tc >/dev/null; then
    exit 0
fi
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "netns-env: installing iproute2" >&2
    "$(dirname "$0")/retry.sh" bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2' >&2 && exit 0
    echo "netns-env: iproute2 could not be installed: run 'apt-get install iproute2' and look at what it says" >&2
else
    echo "netns-env: iproute2 is missing: as root, run 'apt-get install iproute2' (or your system's equivalent)" >&2
fi
echo "netns-env: tests in network namespaces will be skipped" >&2
