#!/usr/bin/env bash
# Runs every fuzz target, or the named ones, for some time each: scripts/fuzz.sh SECONDS [TARGET …]. Needs a nightly compiler, and
# no cargo-fuzz: these are the flags that it would pass. Inputs are kept in fuzz/corpus, those that failed in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
cargo=${CARGO:-cargo}
if ! "$cargo" +nightly --version >/dev/null 2>&1; then
    echo "fuzz: a nightly compiler is missing: rustup toolchain install nightly --profile minimal" >&2
    exit 1
fi
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
if (($# > 0)); then
    targets=("$@")
else
    mapfile -t targets < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')
fi

# Overflows and debug assertions are findings too. Build scripts and macros are left alone, since a target is named.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions -Coverflow-checks"
flags+=" -Cdebuginfo=1 -Ccodegen-units=1"
build=(build --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir fuzz/target)
for target in "${targets[@]}"; do
    build+=(--bin "$target")
done
RUSTFLAGS=$flags "$cargo" +nightly "${build[@]}"

failed=()
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    echo "fuzz: $target for $seconds s"
    # A leak of a single allocation is none that matters here, and finding it costs most of the time.
    if ! ASAN_OPTIONS=detect_leaks=0 "fuzz/target/$host/release/$target" "fuzz/corpus/$target" \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0; then
        failed+=("$target")
    fi
done
if ((${#failed[@]} > 0)); then
    echo "fuzz: failed: ${failed[*]}; inputs are in fuzz/artifacts, run one with 'fuzz/target/$host/release/TARGET FILE'" >&2
    exit 1
fi
