#!/usr/bin/env bash
# Runs tests several at once, and then one by one those that measure time or memory (marked `alone`):
# scripts/pytest-parallel.sh PYTHON WORKERS DIRECTORY [PYTEST-ARGUMENT...]
set -uo pipefail
cd "$(dirname "$0")/.."

python=$1
workers=$2
directory=$3
shift 3
NOTHING_SELECTED=5
"$python" -m pytest "$directory" -n "$workers" -m "not alone" "$@"
beside=$?
((beside == 0 || beside == NOTHING_SELECTED)) || exit $beside
"$python" -m pytest "$directory" -m alone "$@"
alone=$?
((alone == NOTHING_SELECTED && beside == 0)) || exit $alone
