#!/usr/bin/env bash
# Looks for undefined behaviour in the index, the only room with unsafe code: scripts/memory-checks.sh miri|any. `miri` needs miri;
# `any` takes AddressSanitizer where there is none, and valgrind where there is no nightly compiler. MIRI_TESTS takes arguments of
# `cargo test` (default: all tests of the crate).
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$1
cargo=${CARGO:-cargo}
read -r -a tests <<<"${MIRI_TESTS:---lib --tests}"
host=$(rustc -vV | sed -n 's/^host: //p')

if "$cargo" +nightly miri --version >/dev/null 2>&1; then
    # Edges keep addresses as numbers: strict provenance is not for them. Interleavings are other ones at every run, by the seed.
    echo "memory-checks: miri over crates/index"
    MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-env-forward=PROPTEST_CASES ${MIRIFLAGS:-}" \
        "$cargo" +nightly miri test -p kvplane-index "${tests[@]}"
    exit 0
fi
echo "memory-checks: miri is missing: rustup toolchain install nightly --component miri,rust-src (or rustup +nightly component add miri rust-src)" >&2
[[ $wanted == any ]] || exit 1

if "$cargo" +nightly --version >/dev/null 2>&1; then
    echo "memory-checks: AddressSanitizer over crates/index instead"
    RUSTFLAGS=-Zsanitizer=address "$cargo" +nightly test --target "$host" --target-dir target/asan -p kvplane-index "${tests[@]}"
elif command -v valgrind >/dev/null; then
    echo "memory-checks: valgrind over the unit tests of crates/index instead"
    triple=${host^^}
    export "CARGO_TARGET_${triple//-/_}_RUNNER=valgrind --quiet --error-exitcode=9"
    "$cargo" test --target-dir target/valgrind -p kvplane-index --lib
else
    echo "memory-checks: no nightly compiler for AddressSanitizer, and no valgrind: install one of them" >&2
    exit 1
fi
