#!/usr/bin/env bash
# Checks dependencies against deny.toml: scripts/deny.sh [--install]. With cargo-deny where it is installed, in PATH or in .tools;
# otherwise with scripts/check-licences.py, which knows no advisories. --install puts cargo-deny into .tools first: some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
cargo=${CARGO:-cargo}
tools=$PWD/.tools/cargo-deny
tool=$(command -v cargo-deny || true)
if [[ -z $tool && -x $tools/bin/cargo-deny ]]; then
    tool=$tools/bin/cargo-deny
fi
if [[ -z $tool && ${1:-} == --install ]]; then
    echo "deny: installing cargo-deny $version into .tools" >&2
    # Without its usual features: the database is fetched by git itself.
    "$cargo" install --quiet --locked --version "$version" --root "$tools" --target-dir "$tools/target" cargo-deny
    rm -rf "$tools/target"
    tool=$tools/bin/cargo-deny
fi
if [[ -z $tool ]]; then
    "${PYTHON:-python3}" scripts/check-licences.py
    echo "deny: licences, bans and sources are fine; advisories were not checked: cargo-deny is not installed (scripts/deny.sh --install)"
    exit 0
fi

"$tool" --offline --log-level warn check --hide-inclusion-graph licenses bans sources
# Without a network a copy of the database is good enough, if there is one.
if timeout 60 "$tool" --log-level error fetch db >/dev/null 2>&1; then
    "$tool" --log-level warn check --hide-inclusion-graph --disable-fetch advisories
elif "$tool" --offline --log-level off check --disable-fetch advisories >/dev/null 2>&1; then
    echo "deny: the advisory database could not be fetched: checked against the copy from the last time"
else
    copies=("${CARGO_HOME:-$HOME/.cargo}"/advisory-dbs/*)
    if [[ -d ${copies[0]} ]]; then
        "$tool" --offline --log-level warn check --hide-inclusion-graph --disable-fetch advisories
    fi
    echo "deny: advisories were not checked: https://github.com/rustsec/advisory-db could not be fetched, and there is no copy of it"
fi
