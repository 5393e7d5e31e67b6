#!/usr/bin/env bash
# Unit, integration and documentation tests of the packages that the arguments select: with cargo-nextest where it is installed,
# otherwise with `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

# Property tests draw the same cases in every run, so that a commit that passed once passes again. PROPTEST_RNG_SEED=random explores.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
if [[ $PROPTEST_RNG_SEED == random ]]; then
    PROPTEST_RNG_SEED=$((RANDOM * 32768 + RANDOM))
    echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
fi

cargo=${CARGO:-cargo}
processors=$(nproc 2>/dev/null || echo 2)
if "$cargo" nextest --version >/dev/null 2>&1; then
    "$cargo" nextest run "$@" --no-fail-fast --status-level fail --final-status-level slow --test-threads $((processors * 4))
    "$cargo" test --quiet --doc "$@"
else
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((processors * 2))} "$cargo" test --no-fail-fast "$@"
fi
