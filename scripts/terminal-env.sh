#!/usr/bin/env bash
# What the tests of terminal screens need: tmux, from Debian. Does nothing when it is there already. Where it cannot be installed, says
# so and succeeds: the tests are skipped then, with the same words.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v tmux >/dev/null && exit 0
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "terminal-env: installing tmux" >&2
    scripts/retry.sh bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends tmux' >&2 && exit 0
fi
echo "terminal-env: tmux is missing: as root, run 'apt-get install tmux'; the tests of terminal screens are skipped" >&2
