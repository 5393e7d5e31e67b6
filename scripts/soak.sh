#!/usr/bin/env bash
# Random faults against a running plane, every answer checked: docs/internals/benchmarks.md has figures.
#
#   SOAK_SECONDS   end after this time            (default: 3600)
#   SOAK_FAULTS    or after this many faults      (default: 1000000)
#   SOAK_ENGINES   simulated engines              (default: 96)
#   SOAK_SEED      what is chosen, and when       (default: 1)
#   KVPLANE_BIN    the program under test         (default: a release build of this checkout)
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
cargo=${CARGO:-cargo}
"$cargo" build --release -p kvplane-server --example soak
if [[ -z ${KVPLANE_BIN:-} ]]; then
    "$cargo" build --release -p kvplane
fi
echo "# $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)"
exec "$target/release/examples/soak" "${KVPLANE_BIN:-$target/release/kvplane}" \
    --seconds "${SOAK_SECONDS:-3600}" --faults "${SOAK_FAULTS:-1000000}" --engines "${SOAK_ENGINES:-96}" --seed "${SOAK_SEED:-1}"
