#!/usr/bin/env bash
# Runs a command that needs a network, and runs it again where it fails, twice at most: scripts/retry.sh COMMAND...
set -uo pipefail

for pause in 3 15 0; do
    "$@" && exit 0
    status=$?
    ((pause)) || break
    echo "retry: '$1' ended with $status, again in $pause s" >&2
    sleep "$pause"
done
exit "$status"
