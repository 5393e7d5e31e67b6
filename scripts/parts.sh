#!/usr/bin/env bash
# Everything that CI runs, part by part, and at the end how long each part took. It stops at the first part that fails.
#
# Own crates are compiled by clippy's driver, which is rustc with more lints: one pass lints and builds, and every part uses what the
# others have built. What has to be installed is installed while the compiler runs.
set -uo pipefail
cd "$(dirname "$0")/.."

make=${MAKE:-make}
logs=$(mktemp -d)
report=()
began=$SECONDS

finish() {
    jobs -p | xargs -r kill 2>/dev/null
    wait
    rm -rf "$logs"
}
trap finish EXIT

summary() {
    printf '\n%-12s %7s\n' part seconds
    printf '%s\n' "${report[@]}"
    printf '%-12s %7d\n' all $((SECONDS - began))
}

fail() {
    summary
    echo "make test: $*" >&2
    exit 1
}

# part NAME COMMAND...
part() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        report+=("$(printf '%-12s %7d' "$name" $((SECONDS - start)))")
    else
        report+=("$(printf '%-12s %7d  failed' "$name" $((SECONDS - start)))")
        fail "$name failed: '$make $name' runs it alone"
    fi
}

# beside NAME COMMAND...: the same, while others run; `joined NAME` waits for it and shows what it wrote.
declare -A running
beside() {
    local name=$1
    shift
    (
        start=$SECONDS
        "$@" >"$logs/$name" 2>&1
        status=$?
        echo $((SECONDS - start)) >"$logs/$name.seconds"
        exit $status
    ) &
    running[$name]=$!
}
joined() {
    local name=$1 status=0
    wait "${running[$name]}" || status=$?
    printf '\n== %s (ran beside other parts)\n' "$name"
    cat "$logs/$name"
    if ((status)); then
        report+=("$(printf '%-12s %7d  failed' "$name" "$(<"$logs/$name.seconds")")")
        fail "$name failed: '$make $name' runs it alone"
    fi
    report+=("$(printf '%-12s %7d  beside others' "$name" "$(<"$logs/$name.seconds")")")
}

driver=$("${RUSTC:-rustc}" --print sysroot)/bin/clippy-driver
[[ -x $driver ]] || driver=$(command -v clippy-driver) || fail "clippy is missing: rustup component add clippy"
# How cargo-clippy passes arguments on: each with this mark behind it.
export CLIPPY_ARGS='-Dwarnings__CLIPPY_HACKERY__'
export RUSTC_WORKSPACE_WRAPPER=$driver
driver_denies_warnings() {
    echo 'pub fn f(x: &Vec<u8>) -> usize { x.len() }' >"$logs/lint.rs"
    ! (cd "$logs" && CARGO_PRIMARY_PACKAGE=1 CLIPPY_CONF_DIR=. "$driver" "${RUSTC:-rustc}" --edition 2024 --crate-type lib --emit metadata lint.rs 2>/dev/null)
}
driver_denies_warnings || fail "$driver takes no arguments from CLIPPY_ARGS: see how this release of cargo-clippy passes them on"
# Nothing is compiled twice with a small change in between here.
export CARGO_INCREMENTAL=0
# Nobody debugs these programs, and the two optimised crates are fast enough without a pass over all of their units: about a quarter of the
# compiler's time. A panic says its file and line all the same.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_PROFILE_DEV_LTO=off

beside environments "$make" --no-print-directory environments
part lint "$make" --no-print-directory quick-lint
part build "$make" --no-print-directory build
part unit "$make" --no-print-directory unit
joined environments
part alerts "$make" --no-print-directory alerts
part interop "$make" --no-print-directory interop
# What waits most of the time runs beside what computes, with ports of its own.
KVPLANE_TEST_PORTS=28000-32000 beside newcomer "$make" --no-print-directory newcomer
KVPLANE_TEST_PORTS=15000-28000 part python "$make" --no-print-directory python
joined newcomer
KVPLANE_TEST_PORTS=28000-32000 beside terminal "$make" --no-print-directory terminal
KVPLANE_TEST_PORTS=15000-28000 part browser "$make" --no-print-directory browser
joined terminal
# They compress most of the time, on one core.
beside packages "$make" --no-print-directory packages
# With --cfg loom it is another program, which clippy does not look at.
part loom env -u RUSTC_WORKSPACE_WRAPPER "$make" --no-print-directory loom
joined packages
summary
