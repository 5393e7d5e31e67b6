#!/usr/bin/env bash
# Downloads the libraries that Cargo.lock names, where they are not here yet.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/retry.sh "${CARGO:-cargo}" fetch --quiet --locked || {
    echo "fetch: libraries could not be downloaded, see cargo's words above (is crates.io, or the registry that cargo is configured for, reachable?)" >&2
    exit 1
}
