#!/usr/bin/env bash
# What builds kvplane: a recent Rust, and a C compiler for cryptography; with `tests` also a C++ compiler for libzmq, which tests have at
# the other end. Says what is missing, and where it comes from.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "$*" >&2
    exit 1
}

cargo=${CARGO:-cargo}
needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
elsewhere="(make install and make dist also take a program that was built elsewhere: BINARY=FILE)"
command -v "$cargo" >/dev/null || fail "cargo is missing: install Rust $needed or newer, from https://rustup.rs $elsewhere"
read -r _ version _ < <("$cargo" --version) || fail "$cargo --version does not say which Rust this is: install Rust $needed or newer"
oldest=$(printf '%s\n' "$needed" "$version" | sort --version-sort | head --lines=1)
[[ $oldest == "$needed" ]] || fail "Rust $version is too old: $needed or newer is needed (rustup update stable) $elsewhere"
command -v "${CC:-cc}" >/dev/null || fail "a C compiler is missing: libraries are built from source (Debian: apt-get install gcc)"
if [[ ${1-} == tests ]]; then
    command -v "${CXX:-c++}" >/dev/null || fail "a C++ compiler is missing: tests build libzmq from source (Debian: apt-get install g++)"
fi
